"""Re-organization by vectors: what is muddled is put right, once, and nothing else is touched."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from clag_server.catalog.api_clusters import EditAnswer
from clag_server.catalog.sqlite import SqliteCatalog
from clag_server.memory.cluster_service import EditOptions, MemoryGroup, ProfileChange
from clag_server.memory.reorganizing.plan import StepKind, steps_of
from clag_server.memory.reorganizing.service import ReorganizeRequest
from clag_server.memory.system import MemorySystem
from clag_server.types.change import HistoryCause
from clag_server.types.cluster import ClusterEvent, ClusterField, PlacementPlan
from clag_server.types.errors import NotFound, OperationRunning, RequestIdReused, StorageFailed
from clag_server.types.memory import DecidedBy
from clag_server.types.operation import Operation, OperationState
from tests.catalog.consistency import assert_file_consistent
from tests.memory.reorganize_support import (
    SETTINGS,
    home,
    merge,
    move,
    organized,
    pure,
    reorganized,
    tell,
    tell_episode,
    topics_by_cluster,
)
from tests.memory.system import NAMESPACE, ended, get, system_on


def kinds(operation: Operation) -> list[StepKind]:
    return [step.kind for step in steps_of(operation.result)]


async def test_what_is_right_is_left_alone(tmp_path: Path) -> None:
    async with system_on(tmp_path, **SETTINGS) as system:
        homes = await tell(system)
        done = await reorganized(system)
        assert (done.state, done.result["steps"], done.result["moved"]) == (OperationState.SUCCEEDED, [], 0)
        assert {topic: await home(system, f"{topic}-0-0") for topic in homes} == homes


async def test_a_cluster_of_two_topics_is_split_and_both_parts_have_titles_of_their_own(tmp_path: Path) -> None:
    async with system_on(tmp_path, **SETTINGS) as system:
        homes = await tell(system)
        await merge(system, homes["dock"], [homes["door"]])
        done = await reorganized(system)
        assert StepKind.SPLIT in kinds(done)
        assert (done.result["clusters_before"], done.result["clusters_after"]) == (3, 4)
        assert done.result["by"] == DecidedBy.VECTOR
        assert pure(await topics_by_cluster(system))
        views, _ = await system.list_clusters(NAMESPACE, include_archived=True)
        titles = [view.cluster.title for view in views]
        assert len(set(titles)) == len(titles) == 4
        assert not any(view.cluster.profile_stale for view in views)
    assert_file_consistent(tmp_path / "catalog.db")


async def test_a_topic_in_two_clusters_is_merged(tmp_path: Path) -> None:
    async with system_on(tmp_path, **SETTINGS) as system:
        homes = await tell(system)
        half = MemoryGroup("", tuple(f"lamp-{number}-{i}" for number in (1, 3) for i in range(3)))
        await system.cluster_edits.split_off(NAMESPACE, homes["lamp"], [half], EditOptions())
        assert not pure(await topics_by_cluster(system))
        done = await reorganized(system)
        assert kinds(done) == [StepKind.MERGE]
        assert pure(await topics_by_cluster(system))
    assert_file_consistent(tmp_path / "catalog.db")


async def test_an_episode_in_the_wrong_cluster_goes_where_it_belongs_and_says_why(tmp_path: Path) -> None:
    async with system_on(tmp_path, **SETTINGS) as system:
        homes = await tell(system)
        await move(system, homes["gripper"], ["dock-1"])
        done = await reorganized(system)
        assert kinds(done) == [StepKind.REASSIGN]
        step = steps_of(done.result)[0]
        assert (step.sources, step.target, step.memories) == ((homes["gripper"],), homes["dock"], 3)
        assert set(step.samples) == {f"dock-1-{i}" for i in range(3)}
        memory = await get(system, "dock-1-2")
        assert memory.cluster == homes["dock"]
        assert memory.routing is not None
        assert (memory.routing.decided_by, memory.routing.reason) == (DecidedBy.VECTOR, step.reason)
        history = await system.registry.opened(NAMESPACE).state.catalog.memory_history(  # type: ignore[union-attr]
            memory_ns(system), "dock-1-2", before=None, limit=1
        )
        assert history.entries[0].cause is HistoryCause.REORGANIZATION
        notes = await system.cluster_edits.history(NAMESPACE, homes["dock"], before=None, limit=1)
        assert (notes[0].note.event, notes[0].note.operation_id) == (ClusterEvent.MOVED, done.operation_id)


def memory_ns(system: MemorySystem) -> int:
    pipeline = system.registry.opened(NAMESPACE)
    assert pipeline is not None
    return pipeline.state.ns


async def test_a_dry_run_tells_the_plan_and_changes_nothing(tmp_path: Path) -> None:
    async with system_on(tmp_path, **SETTINGS) as system:
        homes = await tell(system)
        await merge(system, homes["dock"], [homes["door"]])
        await organized(system)
        before = await topics_by_cluster(system)
        changes = await system.registry.opened(NAMESPACE).state.catalog.changes(after=0, limit=10_000)  # type: ignore[union-attr]
        planned = await reorganized(system, dry_run=True)
        assert planned.result["dry_run"] is True
        assert [step.target for step in steps_of(planned.result) if step.kind is StepKind.SPLIT] == [-1]
        assert await topics_by_cluster(system) == before
        after = await system.registry.opened(NAMESPACE).state.catalog.changes(after=0, limit=10_000)  # type: ignore[union-attr]
        assert after.changes == changes.changes
        done = await reorganized(system)
        assert [s.memories for s in steps_of(done.result)] == [s.memories for s in steps_of(planned.result)]
        assert [s.new_title for s in steps_of(done.result)] == [s.new_title for s in steps_of(planned.result)]


async def test_pinned_and_archived_clusters_stay_as_they_are(tmp_path: Path) -> None:
    async with system_on(tmp_path, **SETTINGS) as system:
        homes = await tell(system)
        await merge(system, homes["dock"], [homes["door"]])
        await merge(system, homes["gripper"], [homes["lamp"]])
        pin = ProfileChange(fields=frozenset(), pinned=True)
        await system.cluster_edits.update(NAMESPACE, homes["dock"], pin, EditOptions())
        await system.cluster_edits.archive(NAMESPACE, homes["gripper"], archived=True, options=EditOptions())
        before = await topics_by_cluster(system)
        done = await reorganized(system)
        assert done.result["steps"] == []
        assert await topics_by_cluster(system) == before


async def test_only_the_clusters_asked_for_are_touched(tmp_path: Path) -> None:
    async with system_on(tmp_path, **SETTINGS) as system:
        homes = await tell(system)
        await merge(system, homes["dock"], [homes["door"]])
        await merge(system, homes["gripper"], [homes["lamp"]])
        await reorganized(system, clusters=(homes["gripper"],))
        found = await topics_by_cluster(system)
        assert set(found[homes["dock"]]) == {"dock", "door"}
        assert len(found) == 3
        with pytest.raises(NotFound):
            await system.reorganizing.begin(NAMESPACE, ReorganizeRequest(clusters=(999,)))


@pytest.mark.parametrize("target", [1, 2, 4, 6, 9, 16])
async def test_a_number_of_clusters_that_is_asked_for_is_reached_in_one_run(tmp_path: Path, target: int) -> None:
    async with system_on(tmp_path, **SETTINGS) as system:
        await tell(system)  # sixteen episodes
        planned = await reorganized(system, target=target, dry_run=True)
        assert (planned.result["clusters_after"], planned.result["missed"]) == (target, "")
        reasons = {step.reason for step in steps_of(planned.result)}
        assert any("clusters were asked for" in reason for reason in reasons) or target == 4
        assert not any("by -" in reason for reason in reasons)
        done = await reorganized(system, target=target)
        assert done.state is OperationState.SUCCEEDED
        assert len(await topics_by_cluster(system)) == done.result["clusters_after"] == target
        assert (done.result["moved"], done.result["missed"]) == (planned.result["moved"], "")
        views, _ = await system.list_clusters(NAMESPACE, include_archived=True)
        assert len({view.cluster.title for view in views}) == target
    assert_file_consistent(tmp_path / "catalog.db")


async def test_a_number_that_cannot_be_reached_is_come_near_to_and_the_result_says_why(tmp_path: Path) -> None:
    async with system_on(tmp_path, **SETTINGS) as system:
        homes = await tell(system)
        many = await reorganized(system, target=40, dry_run=True)
        assert many.result["clusters_after"] == 16
        assert "16 clusters, not 40: what is left in each is one episode" in str(many.result["missed"])
        pin = ProfileChange(fields=frozenset(), pinned=True)
        for topic in ("dock", "door"):
            await system.cluster_edits.update(NAMESPACE, homes[topic], pin, EditOptions())
        few = await reorganized(system, target=1)
        assert (few.state, few.result["clusters_after"]) == (OperationState.SUCCEEDED, 3)
        assert "2 that are pinned" in str(few.result["missed"])
        assert sorted(await topics_by_cluster(system)) == sorted({homes["dock"], homes["door"], homes["gripper"]})


async def test_what_came_while_a_plan_was_made_is_why_its_number_is_not_reached(tmp_path: Path) -> None:
    async with system_on(tmp_path, **SETTINGS) as system:
        await tell(system, ["dock", "door", "gripper"])
        planned = system.reorganizing._planning.plan

        async def plan_and_be_overtaken(*given: object, **more: object) -> object:
            plan = await planned(*given, **more)  # type: ignore[arg-type]
            await tell_episode(system, "lamp", 0)
            await organized(system)
            return plan

        system.reorganizing._planning.plan = plan_and_be_overtaken  # type: ignore[method-assign,assignment]
        done = await reorganized(system, target=2)
        assert (done.state, done.result["clusters_after"]) == (OperationState.SUCCEEDED, 3)
        assert "changed while the plan was made" in str(done.result["missed"])


async def test_no_merge_makes_a_cluster_larger_than_the_bound(tmp_path: Path) -> None:
    async with system_on(tmp_path, **SETTINGS, cluster_max=20) as system:
        await tell(system)
        done = await reorganized(system, target=1)
        assert max(sum(counts.values()) for counts in (await topics_by_cluster(system)).values()) <= 20
        assert done.result["clusters_after"] == 4
        assert "at most 20 memories" in str(done.result["missed"])


async def test_the_same_request_twice_is_one_operation_and_two_at_once_are_refused(tmp_path: Path) -> None:
    async with system_on(tmp_path, **SETTINGS) as system:
        await tell(system)
        pipeline = system.registry.opened(NAMESPACE)
        assert pipeline is not None
        async with pipeline.state.lock:  # the plan is empty, and applied only when the lock is free
            first = await system.reorganizing.begin(NAMESPACE, ReorganizeRequest(), request_id="once")
            again = await system.reorganizing.begin(NAMESPACE, ReorganizeRequest(), request_id="once")
            assert again.operation_id == first.operation_id
            with pytest.raises(OperationRunning, match=first.operation_id):
                await system.reorganizing.begin(NAMESPACE, ReorganizeRequest())
        await ended(system, first)
        late = await system.reorganizing.begin(NAMESPACE, ReorganizeRequest(), request_id="once")
        assert late.operation_id == first.operation_id
        with pytest.raises(RequestIdReused):
            await system.reorganizing.begin(NAMESPACE, ReorganizeRequest(dry_run=True), request_id="once")


class Faulty(SqliteCatalog):
    """Fails at its first edit of clusters: before it is committed, or after."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.fails = ""
        self.edits = 0

    async def edit_clusters(self, ns: int, plan: PlacementPlan, *, answer: EditAnswer | None, now_ns: int) -> int:
        fails, self.fails = self.fails, ""
        if fails == "before":
            raise StorageFailed("the disk is full")
        revision = await super().edit_clusters(ns, plan, answer=answer, now_ns=now_ns)
        self.edits += 1
        if fails == "after":
            raise StorageFailed("nobody hears of it")
        return revision


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_fault_around_the_commit_neither_applies_twice_nor_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    made: list[Faulty] = []

    def faulty(path: Path) -> Faulty:
        made.append(Faulty(path))
        return made[-1]

    monkeypatch.setattr("tests.memory.system.SqliteCatalog", faulty)
    async with system_on(tmp_path, **SETTINGS) as system:
        homes = await tell(system)
        await merge(system, homes["dock"], [homes["door"]])
        made[0].fails, made[0].edits = when, 0
        done = await reorganized(system)
        assert (done.state, done.result["moved"]) == (OperationState.SUCCEEDED, 12)
        assert made[0].edits == 1
        assert pure(await topics_by_cluster(system))
    assert_file_consistent(tmp_path / "catalog.db")


async def test_a_plan_that_was_saved_is_applied_after_a_restart(tmp_path: Path) -> None:
    async with system_on(tmp_path, **SETTINGS) as system:
        homes = await tell(system)
        await merge(system, homes["dock"], [homes["door"]])
        pipeline = system.registry.opened(NAMESPACE)
        assert pipeline is not None
        async with pipeline.state.lock:  # it waits here with its plan, and the server stops
            begun = await system.reorganizing.begin(NAMESPACE, ReorganizeRequest())
            async for state in system.operations.watch(begun.operation_id):
                if state.phase == "applying":
                    break
            await system.operations.stop()
        assert not pure(await topics_by_cluster(system))
    async with system_on(tmp_path, **SETTINGS) as system:
        done = await ended(system, begun)
        done = done if done.state.ended else await system.operations.get(begun.operation_id)
        assert (done.state, done.result["moved"]) == (OperationState.SUCCEEDED, 12)
        assert pure(await topics_by_cluster(system))
    assert_file_consistent(tmp_path / "catalog.db")


async def test_an_operation_cancelled_before_its_plan_is_applied_changes_nothing(tmp_path: Path) -> None:
    async with system_on(tmp_path, **SETTINGS) as system:
        homes = await tell(system)
        await merge(system, homes["dock"], [homes["door"]])
        before = await topics_by_cluster(system)
        begun = await system.reorganizing.begin(NAMESPACE, ReorganizeRequest())
        await system.operations.cancel(begun.operation_id)
        assert (await ended(system, begun)).state is OperationState.CANCELLED
        assert await topics_by_cluster(system) == before


async def test_what_no_longer_holds_of_a_plan_is_left_out(tmp_path: Path) -> None:
    async with system_on(tmp_path, **SETTINGS) as system:
        homes = await tell(system)
        await move(system, homes["gripper"], ["dock-1"])
        await move(system, homes["lamp"], ["door-1", "door-2"])
        await organized(system)
        pipeline = system.registry.opened(NAMESPACE)
        assert pipeline is not None

        async def meanwhile() -> None:
            await move(system, homes["door"], ["dock-1"])
            await pipeline.state.catalog.delete(pipeline.state.ns, "door-1-0", etag="", now_ns=1)
            await pipeline.state.reload()
            pin = ProfileChange(fields=frozenset({ClusterField.TITLE}), title="Mine", pinned=True)
            await system.cluster_edits.update(NAMESPACE, homes["lamp"], pin, EditOptions())

        planned = system.reorganizing._planning.plan

        async def plan_and_be_overtaken(*given: object, **more: object) -> object:
            plan = await planned(*given, **more)  # type: ignore[arg-type]
            await meanwhile()
            return plan

        system.reorganizing._planning.plan = plan_and_be_overtaken  # type: ignore[method-assign,assignment]
        done = await reorganized(system)
        assert (done.state, done.result["steps"]) == (OperationState.SUCCEEDED, [])
        assert await home(system, "dock-1-0") == homes["door"]
        assert await home(system, "door-1-1") == homes["lamp"]
    assert_file_consistent(tmp_path / "catalog.db")


async def test_memories_that_came_since_a_merge_was_planned_do_not_carry_it_over_the_bound(tmp_path: Path) -> None:
    async with system_on(tmp_path, **SETTINGS, cluster_max=24) as system:
        await tell(system, ["dock", "door"])  # 12 memories each: one cluster may hold them as yet
        planned = system.reorganizing._planning.plan

        async def plan_and_be_overtaken(*given: object, **more: object) -> object:
            plan = await planned(*given, **more)  # type: ignore[arg-type]
            assert [step.kind for step in plan.steps] == [StepKind.MERGE]
            await tell_episode(system, "dock", 4)
            await organized(system)
            return plan

        system.reorganizing._planning.plan = plan_and_be_overtaken  # type: ignore[method-assign,assignment]
        done = await reorganized(system, target=1)
        assert (done.state, done.result["steps"]) == (OperationState.SUCCEEDED, [])
        sizes = sorted(sum(counts.values()) for counts in (await topics_by_cluster(system)).values())
        assert sizes == [12, 15]
    assert_file_consistent(tmp_path / "catalog.db")


async def test_memories_that_stream_in_are_edited_and_deleted_meanwhile_are_each_in_one_cluster(
    tmp_path: Path,
) -> None:
    async with system_on(tmp_path, **SETTINGS) as system:
        homes = await tell(system)
        await merge(system, homes["dock"], [homes["door"]])
        stop = asyncio.Event()

        async def stream() -> None:
            number = 10
            while not stop.is_set():
                await tell_one(system, number)
                number += 1

        async def edit() -> None:
            while not stop.is_set():
                found = await topics_by_cluster(system)
                if len(found) > 3:
                    await merge(system, *pair(found))
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            group.create_task(stream())
            group.create_task(edit())
            try:
                for _ in range(4):
                    done = await reorganized(system)
                    assert done.state is OperationState.SUCCEEDED
            finally:
                stop.set()
        await organized(system)
        views, _ = await system.list_clusters(NAMESPACE, include_archived=True)
        counted = {number: sum(counts.values()) for number, counts in (await topics_by_cluster(system)).items()}
        assert {view.cluster.cluster: view.cluster.memory_count for view in views} == counted
    assert_file_consistent(tmp_path / "catalog.db")


def pair(found: Mapping[int, object]) -> tuple[int, Sequence[int]]:
    first, second, *_ = sorted(found)
    return first, [second]


async def tell_one(system: MemorySystem, number: int) -> None:
    await tell_episode(system, "dock", number)
    await tell_episode(system, "door", number)
    for topic in ("dock", "door"):
        await system.edits.delete(NAMESPACE, f"{topic}-{number}-1", etag="")
