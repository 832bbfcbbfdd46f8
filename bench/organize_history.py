"""What a whole run's history tells: evolution stays inside clusters, and how much of it is the model's word."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from clag_client import AsyncClient

_AT_ONCE: Final = 16
_BY_ANOTHER: Final = (pb.HISTORY_CAUSE_EVOLUTION, pb.HISTORY_CAUSE_CONFLICT)
_REWRITTEN: Final = frozenset({"context", "keywords", "evolved_tags"})

_JUDGED: Final = (types_pb2.LINK_KIND_CAUSAL, types_pb2.LINK_KIND_SAME_SUBJECT)
"""Kinds of links that only a model makes: no rule does. Of the other kinds, rules make some."""


@dataclass(frozen=True, slots=True)
class Past:
    """A memory: the cluster that it is in now, "" for none, and its history, newest first."""

    cluster: str
    entries: tuple[pb.MemoryHistoryEntry, ...]

    def clusters(self) -> Iterator[tuple[pb.MemoryHistoryEntry, str]]:
        """Yield each entry with the cluster that the memory was in when the entry was written."""
        cluster = self.cluster
        for entry in self.entries:
            yield entry, cluster
            for change in entry.changes:
                if change.field == "cluster_id":
                    cluster = json.loads(change.old_value) if change.old_value else ""

    def cluster_at(self, moment: tuple[int, int]) -> str:
        """Return the cluster that it was in at a time (seconds, nanoseconds)."""
        earliest = self.cluster
        for entry, cluster in self.clusters():
            earliest = cluster
            if (entry.time.seconds, entry.time.nanos) <= moment:
                return cluster
        return earliest


@dataclass(frozen=True, slots=True)
class Locality:
    """Entries that another memory caused; those whose two memories were in different clusters then."""

    entries: int
    across: int


@dataclass(frozen=True, slots=True)
class Evolved:
    """What evolution did in a run.

    Attributes:
        by_model: Memories whose annotation or links an SLM had a part in.
        rewritten: Entries in which another memory's arrival rewrote context, keywords or tags.
        links: Links on all memories.
        judged: Those of them of kinds that only a model makes.
    """

    by_model: int
    rewritten: int
    links: int
    judged: int


async def pasts(client: AsyncClient, namespace: str, memories: Sequence[types_pb2.Memory]) -> dict[str, Past]:
    """Read the history of all memories."""
    turn = asyncio.Semaphore(_AT_ONCE)

    async def one(memory: types_pb2.Memory) -> Past:
        async with turn:
            entries = [entry async for entry in _entries(client, namespace, memory.memory_id)]
        return Past(memory.cluster_id, tuple(entries))

    found = await asyncio.gather(*map(one, memories))
    return {memory.memory_id: past for memory, past in zip(memories, found, strict=True)}


async def _entries(client: AsyncClient, namespace: str, memory_id: str) -> AsyncIterator[pb.MemoryHistoryEntry]:
    request = pb.ListMemoryHistoryRequest(namespace=namespace, memory_id=memory_id, page_size=1000)
    while True:
        page = await client.memory.ListMemoryHistory(request, metadata=client.metadata)
        for entry in page.entries:
            yield entry
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


def locality(found: Mapping[str, Past]) -> Locality:
    """Check each entry that another memory caused: where were the two, by their own histories, at its time?

    Causes that no longer exist are not counted.
    """
    entries = across = 0
    for past in found.values():
        for entry, cluster in past.clusters():
            cause = found.get(entry.cause_memory_id)
            if entry.cause not in _BY_ANOTHER or cause is None:
                continue
            entries += 1
            theirs = cause.cluster_at((entry.time.seconds, entry.time.nanos))
            across += not (cluster == theirs == entry.cluster_id)
    return Locality(entries, across)


def evolved(memories: Sequence[types_pb2.Memory], found: Mapping[str, Past]) -> Evolved:
    """Count what evolution did."""
    entries = [
        (key, entry)
        for key, past in found.items()
        for entry in past.entries
        if entry.cause == pb.HISTORY_CAUSE_EVOLUTION
    ]
    links = [link for memory in memories for link in memory.links]
    return Evolved(
        by_model=len({key for key, entry in entries if entry.model and not entry.cause_memory_id}),
        rewritten=sum(
            bool(entry.cause_memory_id) and any(one.field in _REWRITTEN for one in entry.changes)
            for _, entry in entries
        ),
        links=len(links),
        judged=sum(link.kind in _JUDGED for link in links),
    )
