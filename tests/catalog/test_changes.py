"""The change log tells what happened, in order, from any revision on, as far as it reaches back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from clag_server.catalog.api import Catalog, Evolution
from clag_server.types.change import Change, ChangeKind
from clag_server.types.cluster import Cluster, Move, PlacementPlan
from clag_server.types.errors import LogCompacted
from clag_server.types.memory import MemoryState, NewMemory
from tests.catalog import support
from tests.catalog.conftest import Reopen

NOW = support.NOW


async def all_changes(catalog: Catalog, *, after: int = 0, limit: int = 1_000) -> list[Change]:
    """Read the log to its end, `limit` rows at a time."""
    found: list[Change] = []
    while True:
        batch = await catalog.changes(after=after, limit=limit)
        assert batch.through >= after
        found += batch.changes
        if batch.through == await catalog.revision():
            return found
        after = batch.through


async def organized(catalog: Catalog, ns: int, count: int = 3) -> list[int]:
    """Store memories "m-0", ... and place them in episode 1 of cluster 1; returns their keys."""
    keys = await support.store_keys(catalog, ns, count)
    plan = PlacementPlan(
        clusters=[home(1, keys)],
        episodes=[support.episode(1, 1, [support.unit(key) for key in keys])],
        placements=[support.placement(key, 1, 1) for key in keys],
    )
    await catalog.apply_plan(ns, plan, now_ns=NOW + 1)
    return keys


def home(number: int, keys: Sequence[int], *, title: str = "") -> Cluster:
    """Return a cluster whose one episode holds memories that are embedded by their keys."""
    centroids = [support.centroid([support.unit(key) for key in keys])]
    return support.cluster(number, count=len(keys), centroids=centroids, title=title)


def summary(changes: Sequence[Change]) -> list[tuple[ChangeKind, str, int | None, int | None]]:
    return [(change.kind, change.memory_id, change.cluster, change.old_cluster) for change in changes]


async def test_each_step_of_a_memory_is_a_change_that_says_where_it_is(catalog: Catalog, ns: int) -> None:
    (key,) = await organized(catalog, ns, 1)
    route = PlacementPlan(routed_episodes=[Move(1, 1, support.routing())])
    await catalog.apply_plan(ns, route, now_ns=NOW + 2)
    evolution = Evolution(key=key, cluster=1, cause=key, context="what it means", state=MemoryState.EVOLVED)
    await catalog.evolve(ns, [evolution], now_ns=NOW + 3)
    move = PlacementPlan(clusters=[home(2, [key])], moves=[Move(1, 2, support.routing())], removed_clusters=[1])
    await catalog.apply_plan(ns, move, now_ns=NOW + 4)
    found = await all_changes(catalog)
    assert summary(found) == [
        (ChangeKind.MEMORY_CREATED, "m-0", None, None),
        (ChangeKind.CLUSTER_CREATED, "", 1, None),
        (ChangeKind.MEMORY_MOVED, "m-0", 1, None),
        (ChangeKind.MEMORY_UPDATED, "m-0", 1, None),
        (ChangeKind.MEMORY_EVOLVED, "m-0", 1, None),
        (ChangeKind.CLUSTER_CREATED, "", 2, None),
        (ChangeKind.MEMORY_MOVED, "m-0", 2, 1),
        (ChangeKind.CLUSTER_REMOVED, "", 1, None),
    ]
    assert [change.key for change in found if change.memory_id] == [key] * 5
    assert {change.ns for change in found} == {ns}
    assert [change.time_ns for change in found if change.kind is ChangeKind.MEMORY_MOVED] == [NOW + 1, NOW + 4]


async def test_a_memory_that_is_embedded_again_where_it_is_was_updated_not_moved(catalog: Catalog, ns: int) -> None:
    (key,) = await organized(catalog, ns, 1)
    before = await catalog.revision()
    again = PlacementPlan(
        clusters=[home(1, [99])],
        episodes=[support.episode(1, 1, [support.unit(99)])],
        placements=[support.placement(key, 1, 1, seed=99)],
    )
    await catalog.apply_plan(ns, again, now_ns=NOW + 2)
    assert summary(await all_changes(catalog, after=before)) == [
        (ChangeKind.CLUSTER_UPDATED, "", 1, None),
        (ChangeKind.MEMORY_UPDATED, "m-0", 1, None),
    ]


async def test_a_profile_that_is_written_again_is_an_update_of_its_cluster(catalog: Catalog, ns: int) -> None:
    keys = await organized(catalog, ns, 1)
    before = await catalog.revision()
    await catalog.put_clusters(ns, [home(1, keys, title="Docks")])
    assert summary(await all_changes(catalog, after=before)) == [(ChangeKind.CLUSTER_UPDATED, "", 1, None)]


async def test_a_quarantined_and_a_superseded_memory_were_updated(catalog: Catalog, ns: int) -> None:
    keys = await support.store_keys(catalog, ns, 2)
    before = await catalog.revision()
    await catalog.record_failure(ns, keys[:1], error="it crashes", max_attempts=1, not_before_ns=0)
    await support.store(catalog, ns, [NewMemory(text="newer", memory_id="new", supersedes=("m-1",))])
    assert summary(await all_changes(catalog, after=before)) == [
        (ChangeKind.MEMORY_UPDATED, "m-0", None, None),
        (ChangeKind.MEMORY_CREATED, "new", None, None),
        (ChangeKind.MEMORY_UPDATED, "m-1", None, None),
    ]


async def test_a_memory_whose_state_alone_advanced_was_updated_not_evolved(catalog: Catalog, ns: int) -> None:
    (key,) = await organized(catalog, ns, 1)
    before = await catalog.revision()
    advanced = Evolution(key=key, cluster=1, cause=key, state=MemoryState.EVOLVED)
    await catalog.evolve(ns, [advanced], now_ns=NOW + 2)
    assert summary(await all_changes(catalog, after=before)) == [(ChangeKind.MEMORY_UPDATED, "m-0", 1, None)]


async def test_earlier_changes_of_a_deleted_memory_still_name_it(catalog: Catalog, ns: int) -> None:
    await organized(catalog, ns, 2)
    await catalog.delete(ns, "m-0", etag="", now_ns=NOW + 5)
    named = [(change.kind, change.memory_id) for change in await all_changes(catalog) if change.key is not None]
    assert named == [
        (ChangeKind.MEMORY_CREATED, "m-0"),
        (ChangeKind.MEMORY_CREATED, "m-1"),
        (ChangeKind.MEMORY_MOVED, "m-0"),
        (ChangeKind.MEMORY_MOVED, "m-1"),
        (ChangeKind.MEMORY_DELETED, "m-0"),
    ]


@pytest.mark.parametrize("limit", [1, 2, 7])
async def test_reading_in_small_steps_gives_the_same_changes_in_order_of_revisions(
    catalog: Catalog, ns: int, limit: int
) -> None:
    await organized(catalog, ns, 4)
    await catalog.delete(ns, "m-2", etag="", now_ns=NOW + 5)
    await catalog.probe_write()  # a revision without a change
    whole = await all_changes(catalog)
    assert await all_changes(catalog, limit=limit) == whole
    revisions = [change.revision for change in whole]
    assert revisions == sorted(set(revisions))
    for change in whole:
        rest = await all_changes(catalog, after=change.revision)
        assert rest == [other for other in whole if other.revision > change.revision]


async def test_a_reader_who_has_seen_everything_learns_only_what_is_new(catalog: Catalog, ns: int) -> None:
    await support.store_keys(catalog, ns, 2)
    through = (await catalog.changes(after=0, limit=100)).through
    empty = await catalog.changes(after=through, limit=100)
    assert (empty.changes, empty.through) == ([], through)
    await support.store_keys(catalog, ns, 1, prefix="late")
    assert [change.memory_id for change in (await catalog.changes(after=through, limit=100)).changes] == ["late-0"]


async def test_changes_of_all_namespaces_come_in_one_order(catalog: Catalog, ns: int) -> None:
    other = (await support.namespace(catalog, "other")).ns
    await support.store_keys(catalog, ns, 1, prefix="a")
    await support.store_keys(catalog, other, 1, prefix="b")
    await support.store_keys(catalog, ns, 1, prefix="c")
    found = [(change.ns, change.memory_id) for change in await all_changes(catalog)]
    assert found == [(ns, "a-0"), (other, "b-0"), (ns, "c-0")]


async def log_of(catalog: Catalog, ns: int, count: int) -> list[int]:
    """Store memories a nanosecond apart and return the revisions of their changes."""
    for i in range(count):
        item = NewMemory(text="note", memory_id=f"m-{i}")
        await catalog.append(ns, [item], first_seq=1, stream=None, now_ns=NOW + i)
    return [change.revision for change in await all_changes(catalog)]


async def test_what_was_compacted_is_refused_with_the_oldest_revision_to_resume_after(
    reopen: Reopen, ns: int
) -> None:
    catalog = await reopen()
    revisions = await log_of(catalog, ns, 10)
    assert await catalog.oldest_change() == 0
    assert await catalog.compact_changes(before_ns=NOW + 4, keep=0, limit=100) == 4
    catalog = await reopen()
    oldest = revisions[3]
    assert await catalog.oldest_change() == oldest
    with pytest.raises(LogCompacted) as caught:
        await catalog.changes(after=oldest - 1, limit=10)
    assert (caught.value.asked, caught.value.oldest) == (oldest - 1, oldest)
    kept = await all_changes(catalog, after=oldest)
    assert [change.revision for change in kept] == revisions[4:]


async def test_the_newest_changes_are_kept_however_old_they_are(catalog: Catalog, ns: int) -> None:
    revisions = await log_of(catalog, ns, 10)
    assert await catalog.compact_changes(before_ns=NOW + 100, keep=10, limit=100) == 0
    assert await catalog.compact_changes(before_ns=NOW + 100, keep=7, limit=100) == 3
    assert [change.revision for change in await all_changes(catalog, after=revisions[2])] == revisions[3:]


async def test_compaction_goes_in_steps_of_its_limit_until_nothing_is_left_to_forget(
    catalog: Catalog, ns: int
) -> None:
    revisions = await log_of(catalog, ns, 10)
    gone = [await catalog.compact_changes(before_ns=NOW + 100, keep=1, limit=4) for _ in range(4)]
    assert gone == [4, 4, 1, 0]
    assert await catalog.oldest_change() == revisions[8]


async def test_compaction_stops_at_a_change_that_is_young_also_when_the_clock_was_set_back_after_it(
    catalog: Catalog, ns: int
) -> None:
    for time_ns in (NOW, NOW + 50, NOW + 1):
        await catalog.append(ns, [NewMemory(text="note")], first_seq=1, stream=None, now_ns=time_ns)
    assert await catalog.compact_changes(before_ns=NOW + 10, keep=0, limit=100) == 1
