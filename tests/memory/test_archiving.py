"""Clusters that nobody uses leave default retrieval by themselves, and a question that fits finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clag_server.memory.cluster_service import EditOptions, ProfileChange
from clag_server.memory.system import MemorySystem
from clag_server.types.cluster import ClusterEvent, ClusterState
from clag_server.types.namespace import NamespaceSettings
from tests.catalog.consistency import assert_file_consistent
from tests.memory.builders import START_NS
from tests.memory.reorganize_support import SETTINGS, TOPICS, home, organized, tell, tell_episode
from tests.memory.system import NAMESPACE, found, system_on

DAY_NS = 24 * 3600 * 10**9
SLEEPY: dict[str, Any] = {**SETTINGS, "archive_after_days": 10.0, "archive_check_s": 3600.0}


class Clock:
    """A wall clock in the test's hand."""

    def __init__(self) -> None:
        self.ns = START_NS

    def __call__(self) -> int:
        return self.ns


async def archived(system: MemorySystem) -> set[int]:
    views, _ = await system.list_clusters(NAMESPACE, include_archived=True)
    return {view.cluster.cluster for view in views if view.cluster.state is ClusterState.ARCHIVED}


async def test_a_cluster_without_activity_is_archived_with_a_note_and_others_are_not(tmp_path: Path) -> None:
    clock = Clock()
    async with system_on(tmp_path, now_ns=clock, **SLEEPY) as system:
        homes = await tell(system, episodes=2)
        await system.cluster_edits.update(
            NAMESPACE, homes["lamp"], ProfileChange(fields=frozenset(), pinned=True), EditOptions()
        )
        clock.ns += 9 * DAY_NS
        await tell_episode(system, "door", 2)
        await organized(system)
        assert await system.archiving.once() == 0
        clock.ns += 2 * DAY_NS
        assert await system.archiving.once() == 2
        assert await archived(system) == {homes["dock"], homes["gripper"]}
        notes = await system.cluster_edits.history(NAMESPACE, homes["dock"], before=None, limit=1)
        assert (notes[0].note.event, notes[0].note.reason) == (
            ClusterEvent.ARCHIVED,
            "without activity for 10 days",
        )
        assert await system.archiving.once() == 0
    assert_file_consistent(tmp_path / "catalog.db")


async def test_an_answer_that_used_a_cluster_keeps_it(tmp_path: Path) -> None:
    clock = Clock()
    async with system_on(tmp_path, now_ns=clock, **SLEEPY) as system:
        homes = await tell(system, ["dock", "door"], episodes=2)
        clock.ns += 9 * DAY_NS
        pipeline = system.registry.opened(NAMESPACE)
        assert pipeline is not None
        memory, _ = await system.get_memory(NAMESPACE, "dock-0-0", embedding=False, fresh_revision=0)
        await pipeline.state.catalog.touch(pipeline.state.ns, [memory.key], now_ns=clock.ns)
        clock.ns += 2 * DAY_NS
        await system.archiving.once()
        assert await archived(system) == {homes["door"]}


async def test_a_namespace_says_how_long_and_the_server_says_never(tmp_path: Path) -> None:
    clock = Clock()
    async with system_on(tmp_path, now_ns=clock, **SLEEPY | {"archive_after_days": 0.0}) as system:
        await tell(system, ["dock"], episodes=2)
        clock.ns += 100 * DAY_NS
        assert await system.archiving.once() == 0
        await system.whole.update(NAMESPACE, lambda _: NamespaceSettings(archive_after_ns=DAY_NS), etag="")
        assert await system.archiving.once() == 1


async def test_a_namespace_that_nobody_opened_since_the_start_is_swept_too(tmp_path: Path) -> None:
    clock = Clock()
    async with system_on(tmp_path, now_ns=clock, **SLEEPY) as system:
        await tell(system, ["dock"], episodes=2)
    clock.ns += 11 * DAY_NS
    async with system_on(tmp_path, now_ns=clock, **SLEEPY | {"archive_after_days": 0.0}) as system:
        assert system.registry.opened(NAMESPACE) is None
    async with system_on(tmp_path, now_ns=clock, **SLEEPY) as system:
        await system.archiving.once()
        assert len(await archived(system)) == 1


async def test_an_archived_cluster_is_found_by_a_question_that_fits_it_and_by_no_other(tmp_path: Path) -> None:
    async with system_on(tmp_path, **SETTINGS) as system:
        homes = await tell(system, episodes=2)
        await system.cluster_edits.archive(NAMESPACE, homes["dock"], archived=True, options=EditOptions())

        async def topics(question: str) -> set[str]:
            return {hit.memory.memory_id.split("-")[0] for hit in await found(system, question)}

        assert "dock" in await topics(TOPICS["dock"])
        assert "dock" not in await topics("does the corridor lamp need a cable")
        assert "dock" not in await topics(TOPICS["door"])
        assert await archived(system) == {homes["dock"]}


async def test_what_is_told_about_an_archived_cluster_founds_a_new_one(tmp_path: Path) -> None:
    async with system_on(tmp_path, **SETTINGS) as system:
        homes = await tell(system, episodes=2)
        await system.cluster_edits.archive(NAMESPACE, homes["dock"], archived=True, options=EditOptions())
        await tell_episode(system, "dock", 5)
        assert await home(system, "dock-5-0") not in homes.values()
        assert await home(system, "dock-0-0") == homes["dock"]
        await system.cluster_edits.archive(NAMESPACE, homes["dock"], archived=False, options=EditOptions())
        assert await archived(system) == set()


@pytest.mark.parametrize("days", [float("inf"), 1e300])
async def test_a_time_without_end_archives_nothing_and_the_sweep_goes_on(tmp_path: Path, days: float) -> None:
    async with system_on(tmp_path, **{**SLEEPY, "archive_after_days": days}) as system:
        await tell(system, ["dock"], episodes=1)
        assert await system.archiving.once() == 0
        assert await archived(system) == set()
