"""A stream organized by a real server, and what can be seen of it through the contract.

Used by `grouping`, `spoil` and `organize`. Nothing here looks inside the server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from clag.v1 import admin_service_pb2 as admin_pb
from clag.v1 import memory_service_pb2 as memory_pb
from clag.v1 import types_pb2
from clag_client import AsyncClient

Settings = dict[str, object]

STEPS: Final = 1_000
"""How many of the first memories count as the beginning, in which a grouping must find itself."""

_SETTLED_S: Final = 3.0
"""Without any work for so long, it is looked whether a decision still awaits the SLM."""
_STUCK_S: Final = 600.0
"""What waits for so long, while nothing at all happens, waits for ever."""
_POLL_S: Final = 0.1
_READY_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Work:
    """What the SLM has done: calls, tokens read (kept beginnings left out) and written."""

    calls: int
    tokens_in: int
    tokens_out: int

    def since(self, before: Work) -> Work:
        """What was done after `before`."""
        return Work(
            self.calls - before.calls, self.tokens_in - before.tokens_in, self.tokens_out - before.tokens_out
        )


@dataclass(frozen=True, slots=True)
class Organized:
    """A namespace as it is when nothing is left to do.

    Attributes:
        memories: All, in order of arrival.
        clusters: The active ones.
        stats: Its counters.
        work: What the SLM did for it.
        seconds: From the first item sent to the last thing done.
    """

    memories: tuple[types_pb2.Memory, ...]
    clusters: tuple[types_pb2.Cluster, ...]
    stats: admin_pb.GetStatsResponse
    work: Work
    seconds: float

    def cluster_of(self) -> dict[str, str]:
        """Cluster by memory, of those that have one."""
        return {one.memory_id: one.cluster_id for one in self.memories if one.cluster_id}

    def decisions(self) -> list[types_pb2.RoutingDecision]:
        """The routing decisions, one for each episode, in order."""
        first = {one.episode_id or one.memory_id: one for one in reversed(self.memories)}
        return [one.routing for one in reversed(first.values())]


async def organize(client: AsyncClient, namespace: str, items: Sequence[types_pb2.MemoryInput]) -> Organized:
    """Stream memories and wait until all is done for them. Raises RuntimeError where one was not stored."""
    await slm_ready(client)
    before = await work_of(client)
    started = time.perf_counter()
    level = memory_pb.ACK_LEVEL_ORGANIZED
    async with client.ingest(namespace, items, ack_level=level) as ingestion:
        finished = await ingestion.wait()
    if finished.created != len(items):
        raise RuntimeError(f"{finished.created} of {len(items)} memories were created")
    ended = await quiet(client, namespace)
    return Organized(
        memories=tuple([one async for one in client.list_memories(namespace, page_size=1000)]),
        clusters=tuple([one async for one in client.list_clusters(namespace)]),
        stats=await client.stats(namespace),
        work=(await work_of(client)).since(before),
        seconds=ended - started,
    )


async def quiet(client: AsyncClient, namespace: str) -> float:
    """Wait until nothing waits and nothing happens; returns when the last thing did (`time.perf_counter`).

    Raises RuntimeError where something goes on waiting although nothing happens any more.
    """
    last: tuple[object, ...] = ()
    changed = time.perf_counter()
    while True:
        stats, info = await asyncio.gather(client.stats(namespace), client.server_info())
        backlog = {one.stage: one.pending for one in stats.backlog if one.pending}
        now = (stats.revision.token, stats.outcomes.slm_requests, info.slm.work.calls, str(backlog))
        moment = time.perf_counter()
        if now != last:
            last, changed = now, moment
        elif moment - changed > _SETTLED_S and not backlog and not info.slm.work.waiting:
            # Calls in the engine are neither waiting nor counted: only the decisions tell that an answer is due.
            memories = [one async for one in client.list_memories(namespace, page_size=1000)]
            if not any(one.routing.provisional for one in memories):
                return changed
        if moment - changed > _STUCK_S:
            raise RuntimeError(f"nothing happens any more, and this waits (by stage): {backlog or 'decisions'}")
        await asyncio.sleep(_POLL_S)


async def slm_ready(client: AsyncClient) -> None:
    """Wait until the SLM is loaded, where there is one: loading is not what is measured."""
    async with asyncio.timeout(_READY_S):
        while (await client.server_info()).slm.state == admin_pb.MODEL_STATE_LOADING:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)


async def work_of(client: AsyncClient) -> Work:
    """What the SLM has done since the server started."""
    work = (await client.server_info()).slm.work
    return Work(work.calls, work.tokens_in, work.tokens_out)


async def probed(client: AsyncClient) -> admin_pb.ProbeResult:
    """Run the competence probe to its end and return the outcome. Raises RuntimeError where it fails."""
    operation = (await client.admin.RunProbe(admin_pb.RunProbeRequest(), timeout=_READY_S)).operation
    request = admin_pb.WatchOperationRequest(operation_id=operation.operation_id)
    async for told in client.admin.WatchOperation(request):
        operation = told.operation
    if operation.state != admin_pb.OPERATION_STATE_SUCCEEDED:
        raise RuntimeError(f"the probe did not succeed: {operation.error.message or operation.phase}")
    return operation.probe


def routed_by(memories: Sequence[types_pb2.Memory]) -> Mapping[str, float]:
    """Share of memories by who decided their cluster: slm, vector, deferred, manual, undecided."""
    names = {
        types_pb2.ROUTING_DECIDER_SLM: "slm",
        types_pb2.ROUTING_DECIDER_VECTOR: "vector",
        types_pb2.ROUTING_DECIDER_DEFERRED: "deferred",
        types_pb2.ROUTING_DECIDER_MANUAL: "manual",
    }
    shares = dict.fromkeys([*names.values(), "undecided"], 0.0)
    for one in memories:
        shares[names.get(one.routing.decided_by, "undecided")] += 1 / len(memories)
    return shares


def votes_that_agree(decisions: Sequence[types_pb2.RoutingDecision]) -> tuple[int, int]:
    """How many votes of the SLM there are, and how many of them are for the cluster that the vectors prefer."""
    votes = agree = 0
    for decision in decisions:
        scored = [one for one in decision.candidates if one.HasField("channel_score")]
        if len(scored) < 2:
            continue
        votes += 1
        nearest = max(scored, key=lambda one: one.cosine)
        agree += nearest.channel_score >= max(one.channel_score for one in scored)
    return votes, agree


def unusable(stats: admin_pb.GetStatsResponse) -> int:
    """Answers of the SLM that had no usable shape, or named something that was not offered."""
    causes = (types_pb2.FALLBACK_CAUSE_INVALID_OUTPUT, types_pb2.FALLBACK_CAUSE_NOT_A_CANDIDATE)
    return sum(one.count for one in stats.outcomes.fallbacks if one.cause in causes)
