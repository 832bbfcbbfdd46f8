"""Waiting for an index, and looking at its child and its searches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from clag_server.types.memory import Vector
from clag_server.vectors.api import IndexState, IndexStatus
from clag_server.vectors.index import MilvusIndex
from tests.vectors.catalog_double import DIM, MemoryFeed, unit

DEADLINE_S = 60


async def settled(index: MilvusIndex, ns: int) -> None:
    """Wait until the namespace is READY and everything announced is written."""
    async with asyncio.timeout(DEADLINE_S):
        await index.settle(ns)


async def reached(index: MilvusIndex, ns: int, *states: IndexState) -> IndexStatus:
    """Wait until the namespace is in one of the states."""
    async with asyncio.timeout(DEADLINE_S):
        return await index._namespaces[ns].worker.wait_for(*states)


async def found(
    index: MilvusIndex, ns: int, clusters: Sequence[int] | None, vector: Vector, *, limit: int = 10
) -> list[int]:
    """Return the placements a search finds, best first."""
    hits = await index.search(ns, clusters, vector, limit=limit)
    assert hits.complete
    return [hit.placement_id for hit in hits.hits]


def child_pid(index: MilvusIndex) -> int:
    """Return the process id of the Milvus Lite child that runs now."""
    child = index._backend._child
    assert child is not None
    assert child.status.pid is not None
    return child.status.pid


async def partitions(index: MilvusIndex, ns: int) -> set[str]:
    """Return the partitions that Milvus has for the namespace."""
    session = index._backend.session
    assert session is not None
    return await index._backend.read(session.connection.partitions, ns)


async def written_rows(index: MilvusIndex, ns: int) -> int:
    """Return the number of live rows that Milvus has for the namespace."""
    session = index._backend.session
    assert session is not None
    return await index._backend.read(session.connection.count, ns)


async def checked(index: MilvusIndex, ns: int) -> None:
    """Wait until the namespace's collection has been read through since it was opened."""
    task = index._namespaces[ns].worker._checking
    assert task is not None, "it was rebuilt, so there is nothing to check"
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.wait({task})


async def written(index: MilvusIndex, feed: MemoryFeed, *namespaces: int, rows: int = 200) -> None:
    """Place memories in three clusters of each namespace and wait until they are in Milvus."""
    for ns in namespaces:
        for seed in range(rows):
            feed.put(ns, seed % 3, unit(seed))
        index.notify(ns, DIM)
    for ns in namespaces:
        await settled(index, ns)
        assert await written_rows(index, ns) == rows
