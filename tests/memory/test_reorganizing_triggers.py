"""What starts a re-organization by itself, and what does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clag_server.memory.reorganizing.service import ReorganizeRequest
from clag_server.memory.scenes import SceneSignal
from clag_server.memory.system import MemorySystem
from clag_server.types.namespace import NamespaceSettings
from clag_server.types.operation import OperationState
from tests.memory.builders import START_NS
from tests.memory.reorganize_support import SETTINGS, organized, reorganized, tell, tell_episode
from tests.memory.system import NAMESPACE, ended, system_on

SECOND_NS = 1_000_000_000
QUIET: dict[str, Any] = {
    **SETTINGS,
    "reorganize_auto": True,
    "reorganize_check_s": 3600.0,
    "reorganize_memories": 0,
    "reorganize_growth": 0.0,
}
"""Nothing starts one but what a test adds, and only `once` looks."""


class Clock:
    """A wall clock in the test's hand."""

    def __init__(self) -> None:
        self.ns = START_NS

    def __call__(self) -> int:
        return self.ns


async def started(system: MemorySystem) -> int:
    """Look once and wait for what starts; returns how many."""
    begun = await system.triggers.once()
    for operation_id in begun:
        operation = await system.operations.get(operation_id)
        end = operation if operation.state.ended else await ended(system, operation)
        assert end.state is OperationState.SUCCEEDED
    return len(begun)


@pytest.mark.parametrize("reason", [{"reorganize_memories": 24}, {"reorganize_rounds": 6}])
async def test_so_many_new_memories_or_rounds_start_one_and_then_none_until_as_many_more(
    tmp_path: Path, reason: dict[str, int]
) -> None:
    async with system_on(tmp_path, **QUIET | reason) as system:
        await tell(system, ["dock"], episodes=4)
        assert await started(system) == 0
        await tell(system, ["door"], episodes=4)
        assert await started(system) == 1
        assert await started(system) == 0
        for number in range(4, 14):
            await tell_episode(system, "dock", number)
        await organized(system)
        assert await started(system) == 1


async def test_what_was_counted_survives_a_restart(tmp_path: Path) -> None:
    settings = QUIET | {"reorganize_memories": 24}
    async with system_on(tmp_path, **settings) as system:
        await tell(system, ["dock", "door"], episodes=4)
        assert await started(system) == 1
    async with system_on(tmp_path, **settings) as system:
        await system.registry.pipeline(NAMESPACE, create=False)
        assert await started(system) == 0


async def test_growth_of_clusters_starts_one(tmp_path: Path) -> None:
    async with system_on(tmp_path, **QUIET | {"reorganize_growth": 0.5, "cluster_cosine": 0.999}) as system:
        await tell(system, ["dock", "door", "lamp"], episodes=3)
        views, _ = await system.list_clusters(NAMESPACE, include_archived=False)
        many = len(views) >= 8
        assert await started(system) == int(many)


async def test_a_schedule_starts_one_only_where_something_is_new(tmp_path: Path) -> None:
    clock = Clock()
    async with system_on(tmp_path, now_ns=clock, **QUIET | {"reorganize_every_s": 60.0}) as system:
        await tell(system, ["dock", "door"], episodes=2)
        await reorganized(system)
        await tell(system, ["lamp", "gripper"], episodes=4)
        assert await started(system) == 0
        clock.ns += 61 * SECOND_NS
        assert await started(system) == 1
        clock.ns += 1000 * SECOND_NS
        assert await started(system) == 0
        for number in range(4, 12):
            await tell_episode(system, "dock", number)
        assert await started(system) == 1


async def test_none_starts_where_the_namespace_says_no_or_nobody_says_yes(tmp_path: Path) -> None:
    settings = QUIET | {"reorganize_memories": 1, "reorganize_auto": False}
    async with system_on(tmp_path, **settings) as system:
        await tell(system, ["dock", "door"], episodes=4)
        assert await started(system) == 0
        await system.whole.update(NAMESPACE, lambda _: NamespaceSettings(auto_reorganize=True), etag="")
        assert await started(system) == 1
        await system.whole.update(NAMESPACE, lambda _: NamespaceSettings(auto_reorganize=False), etag="")
        for number in range(4, 12):
            await tell_episode(system, "dock", number)
        assert await started(system) == 0


async def test_none_starts_while_one_runs(tmp_path: Path) -> None:
    async with system_on(tmp_path, **QUIET | {"reorganize_memories": 1}) as system:
        await tell(system, ["dock", "door"], episodes=4)
        pipeline = system.registry.opened(NAMESPACE)
        assert pipeline is not None
        async with pipeline.state.lock:
            running = await system.reorganizing.begin(NAMESPACE, ReorganizeRequest())
            assert await system.triggers.once() == []
        await ended(system, running)


async def test_a_switch_of_the_scene_starts_one_and_the_end_of_a_session_does_not(tmp_path: Path) -> None:
    async with system_on(tmp_path, **QUIET) as system:
        await tell(system, ["dock", "door"], episodes=4)
        closed = await system.scenes.signal(NAMESPACE, "dock-0", SceneSignal.SESSION_END)
        assert closed.operation_id == ""
        switched = await system.scenes.signal(NAMESPACE, "dock-0", SceneSignal.SCENE_SWITCH)
        operation = await system.operations.get(switched.operation_id)
        assert operation.request["trigger"] == "the scene changed"
        if not operation.state.ended:
            await ended(system, operation)
        again = await system.scenes.signal(NAMESPACE, "dock-0", SceneSignal.SCENE_SWITCH)
        assert again.operation_id == ""  # nothing is new since


async def test_the_operation_that_counts_begin_with_outlives_others_of_its_age(tmp_path: Path) -> None:
    async with system_on(tmp_path, **QUIET) as system:
        await tell(system, ["dock", "door"], episodes=2)
        ends = [await reorganized(system), await reorganized(system), await reorganized(system, dry_run=True)]
        pipeline = system.registry.opened(NAMESPACE)
        assert pipeline is not None
        late = max(end.end_time_ns or 0 for end in ends) + 1
        assert await pipeline.state.catalog.forget_operations(ended_before_ns=late) == 2
        kept = await system.operations.list(ns=pipeline.state.ns, before="", limit=10)
        assert [operation.operation_id for operation in kept] == [ends[1].operation_id]
