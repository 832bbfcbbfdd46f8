"""Expiry: out of retrieval at once, deleted by the sweep, and told from what does not expire."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clag_server.memory.config import IngestConfig
from clag_server.types.errors import NotFound
from clag_server.types.namespace import NamespaceSettings
from tests.memory.builders import START_NS, new
from tests.memory.system import NAMESPACE, found, get, remember, system_on

SECOND_NS = 1_000_000_000
SLEEPY = IngestConfig(expiry_sweep_s=3600.0)
"""Only `once` sweeps."""


class Clock:
    """A wall clock in the test's hand."""

    def __init__(self) -> None:
        self.ns = START_NS

    def __call__(self) -> int:
        return self.ns


async def test_an_expired_memory_is_not_retrieved_from_the_moment_on_and_readable_until_it_is_swept(
    tmp_path: Path,
) -> None:
    clock = Clock()
    async with system_on(tmp_path, now_ns=clock, ingest=SLEEPY) as system:
        await remember(system, ["the door code is red"], expire_time_ns=START_NS + 10 * SECOND_NS)
        assert len(await found(system, "door code")) == 1
        clock.ns += 10 * SECOND_NS
        assert await found(system, "door code") == []
        assert (await get(system, "m0")).text == "the door code is red"
        await system.sweep.once()
        with pytest.raises(NotFound):
            await get(system, "m0")


async def test_the_sweep_leaves_what_has_not_expired_and_looks_again_in_time(tmp_path: Path) -> None:
    clock = Clock()
    async with system_on(tmp_path, now_ns=clock, ingest=SLEEPY) as system:
        await remember(system, ["soon gone"], expire_time_ns=START_NS + SECOND_NS)
        await remember(system, ["later gone"], expire_time_ns=START_NS + 5 * SECOND_NS, first=1)
        await remember(system, ["stays"], first=2)
        clock.ns += 2 * SECOND_NS
        assert await system.sweep.once() == pytest.approx(3.0)
        page, _ = await system.list_memories(NAMESPACE, where=None, after=0, limit=10, fresh_revision=0)
        assert [memory.memory_id for memory in page.memories] == ["m1", "m2"]


async def test_a_sweep_of_many_leaves_the_counts_of_episodes_and_clusters_right(tmp_path: Path) -> None:
    clock = Clock()
    async with system_on(tmp_path, now_ns=clock, ingest=SLEEPY) as system:
        await remember(system, [f"crate {i} is full" for i in range(6)], expire_time_ns=START_NS + SECOND_NS)
        await remember(system, ["the crate stays"], first=6)
        clock.ns += 2 * SECOND_NS
        await system.sweep.once()
        views, _ = await system.list_clusters(NAMESPACE, include_archived=True)
        assert sum(view.cluster.memory_count for view in views) == 1


async def test_memories_of_a_namespace_with_a_time_to_live_are_swept_by_themselves(tmp_path: Path) -> None:
    async with system_on(tmp_path, ingest=IngestConfig(expiry_sweep_s=0.05)) as system:
        settings = NamespaceSettings(default_time_to_live_ns=SECOND_NS)
        await system.whole.create(NAMESPACE, settings, embedding_model="")
        await system.create_memory(NAMESPACE, new("short lived", "m0"), request_id="", level=1)  # type: ignore[arg-type]
        assert (await get(system, "m0")).expire_time_ns is not None
        async with asyncio.timeout(30):
            while (await system.stats(NAMESPACE)).rows.deleted == 0:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
