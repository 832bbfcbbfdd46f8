"""What a client can ask of a server that is back: everything acknowledged is there once, and found once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import grpc
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from clag_client import AsyncClient, ClagError

from bench.crash_ledger import Entry, Ledger, Seen, Verdict, read_mark, verify
from bench.crash_texts import NAMESPACE

_RECENT = 40
_OLD = 25
_DELETED = 15
_ASKED = 6


async def spot_check(client: AsyncClient, ledger: Ledger, rng: random.Random) -> Verdict:
    """Read a sample by id, the newest first; ask for some by their text; compare the counts."""
    verdict = Verdict()
    there = ledger.settled()
    sample = there[-_RECENT:] + rng.sample(there, min(_OLD, len(there)))
    memories = await asyncio.gather(*(_read(client, entry, verdict) for entry in sample))
    gone = [entry for entry in ledger.entries.values() if entry.deleted and entry.memory_id]
    await asyncio.gather(*(_read_deleted(client, e, verdict) for e in gone[-_DELETED:]))
    placed = [memory for memory in memories if memory is not None and memory.cluster_id]
    for memory in rng.sample(placed, min(_ASKED, len(placed))):
        await _ask(client, memory, verdict)
    await _counts(client, ledger, verdict)
    return verdict


async def full_check(client: AsyncClient, ledger: Ledger) -> Verdict:
    """List everything and hold it against the ledger and the clusters; nothing may change meanwhile."""
    listed = [memory async for memory in client.list_memories(NAMESPACE, page_size=500)]
    clusters = {c.cluster_id: c async for c in client.list_clusters(NAMESPACE, include_archived=True)}
    members = Counter(memory.cluster_id for memory in listed if memory.cluster_id)
    seen = [Seen(m.memory_id, m.text, _misplaced(m, clusters)) for m in listed]
    ledger.learn(seen)
    verdict = verify(ledger, seen)
    for number, cluster in clusters.items():
        if cluster.memory_count != members[number]:
            verdict.misplace(f"cluster {number} counts {cluster.memory_count} memories and has {members[number]}")
    await _counts(client, ledger, verdict)
    return verdict


def _misplaced(memory: types_pb2.Memory, clusters: dict[str, types_pb2.Cluster]) -> str:
    if memory.cluster_id:
        return "" if memory.cluster_id in clusters else f"its cluster {memory.cluster_id} does not exist"
    unplaced = (types_pb2.MEMORY_STATE_STORED, types_pb2.MEMORY_STATE_QUARANTINED)
    return "" if memory.state in unplaced else "it is in no cluster"


async def _read(client: AsyncClient, entry: Entry, verdict: Verdict) -> types_pb2.Memory | None:
    try:
        memory = await client.get_memory(NAMESPACE, entry.memory_id)
    except ClagError as error:
        if error.code is not grpc.StatusCode.NOT_FOUND:
            raise
        verdict.lose(f"{entry.memory_id} (serial {entry.serial}) cannot be read by its id")
        return None
    found = read_mark(memory.text)
    if found is None or found[0] != entry.serial or not entry.acked <= found[1] <= entry.sent:
        verdict.lose(f"{entry.memory_id} is {found}, expected serial {entry.serial} version {entry.acked}")
    return memory


async def _read_deleted(client: AsyncClient, entry: Entry, verdict: Verdict) -> None:
    try:
        await client.get_memory(NAMESPACE, entry.memory_id)
    except ClagError as error:
        if error.code is not grpc.StatusCode.NOT_FOUND:
            raise
        return
    verdict.double(f"{entry.memory_id} was deleted and can be read")


async def _ask(client: AsyncClient, memory: types_pb2.Memory, verdict: Verdict) -> None:
    """Retrieve by the exact text: the memory is among the hits, once."""
    async with client.retrieve(NAMESPACE, memory.text, slm_use=pb.SLM_USE_NEVER) as stages:
        hits = [hit.memory.memory_id async for stage in stages for hit in stage.memories.hits]
    if memory.memory_id not in hits:
        verdict.lose(f"{memory.memory_id} is not found by its text")
    again = [memory_id for memory_id, times in Counter(hits).items() if times > 1]
    for memory_id in again:
        verdict.double(f"{memory_id} is found twice by one question")


async def _counts(client: AsyncClient, ledger: Ledger, verdict: Verdict) -> None:
    """The server's counters agree with each other and with what was sent and acknowledged."""
    stats = await client.stats(NAMESPACE)
    total = stats.memories.total
    if total != stats.outcomes.created - stats.outcomes.deleted:
        verdict.misplace(f"{stats.outcomes.created} created, {stats.outcomes.deleted} deleted, {total} there")
    least, most = bounds(list(ledger.entries.values()))
    if total < least:
        verdict.lose(f"the server counts {total} memories, at least {least} are acknowledged")
    if total > most:
        verdict.double(f"the server counts {total} memories, at most {most} were sent")


def bounds(entries: Sequence[Entry]) -> tuple[int, int]:
    """Fewest and most memories that there can be."""
    least = sum(entry.acked >= 0 and not entry.deleting for entry in entries)
    return least, sum(not entry.deleted for entry in entries)
