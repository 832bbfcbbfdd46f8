"""Plans, moves and deletes: each memory is in exactly one cluster, and the index is told exactly that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clag_server.catalog.api import Catalog, Evolution, Waiting
from clag_server.types.cluster import Cluster, ClusterState, Move, PlacementPlan
from clag_server.types.errors import EtagMismatch, NotFound
from clag_server.types.memory import Link, LinkKind, MemoryState, NewMemory
from tests.catalog import support
from tests.catalog.conftest import Reopen

NOW = support.NOW


async def test_a_plan_places_memories_once_and_tells_the_index(catalog: Catalog, ns: int) -> None:
    keys = await support.organized(catalog, ns)
    await support.assert_consistent(catalog, ns)
    first = await catalog.memory(ns, "m-0", embedding=True)
    assert (first.cluster, first.episode, first.state) == (1, 1, MemoryState.EMBEDDED)
    assert first.routing == support.routing(provisional=True)
    assert first.embedding is not None
    np.testing.assert_array_equal(first.embedding, support.unit(keys[0]))
    assert (await catalog.stats(ns)).index_backlog == 9


async def test_clusters_and_episodes_come_back_as_they_were_written(reopen: Reopen) -> None:
    catalog = await reopen()
    ns = (await support.namespace(catalog)).ns
    await support.organized(catalog, ns)
    before = await catalog.clusters(ns), await catalog.episodes(ns)
    catalog = await reopen()
    after = await catalog.clusters(ns), await catalog.episodes(ns)
    assert repr(before) == repr(after)
    assert [cluster.cluster for cluster in await catalog.clusters(ns, [2, 7])] == [2]
    assert [episode.episode for episode in await catalog.episodes(ns, [3, 1, 3])] == [1, 3]
    assert (before[0][0].title, before[0][0].tags, before[0][0].profile_stale) == ("cluster 1", ("a", "b"), False)


async def test_members_come_by_episode_and_position_or_in_the_order_asked(catalog: Catalog, ns: int) -> None:
    keys = await support.organized(catalog, ns)
    (unplaced,) = await support.store_keys(catalog, ns, 1, prefix="later")
    members = await catalog.episode_members(ns, [3, 1])
    assert members.keys.tolist() == keys[0:3] + keys[6:9]
    assert members.episodes.tolist() == [1, 1, 1, 3, 3, 3]
    assert members.positions.tolist() == [0, 1, 2, 6, 7, 8]
    np.testing.assert_array_equal(members.vectors[4], support.unit(keys[7]))
    asked = await catalog.members_of(ns, [keys[8], unplaced, 12_345, keys[0]])
    assert asked.keys.tolist() == [keys[8], keys[0]]
    nothing = await catalog.episode_members(ns, [])
    assert nothing.vectors.shape == (0, support.DIM)


async def test_a_moved_episode_is_in_its_new_cluster_only(catalog: Catalog, ns: int) -> None:
    keys = await support.organized(catalog, ns)
    before = {op.placement_id for op in await catalog.current_placements(ns, after=0, limit=100)}
    vectors = [support.unit(key) for key in keys]
    plan = PlacementPlan(
        clusters=[
            support.cluster(1, count=3, centroids=[support.centroid(vectors[0:3])]),
            support.cluster(2, count=6, centroids=[support.centroid(vectors[3:6])]),
        ],
        episodes=[support.episode(2, 2, vectors[3:6])],
        moves=[Move(2, 2, support.routing())],
    )
    await catalog.apply_plan(ns, plan, now_ns=NOW)
    await support.assert_consistent(catalog, ns)
    moved = await catalog.memories(ns, keys[3:6])
    assert {(m.cluster, m.state, m.routing) for m in moved} == {(2, MemoryState.ROUTED, support.routing())}
    after = {op.placement_id for op in await catalog.current_placements(ns, after=0, limit=100)}
    assert len(after - before) == 3
    assert min(after - before) > max(before)


async def test_an_episode_that_stays_is_routed_without_a_new_placement(catalog: Catalog, ns: int) -> None:
    keys = await support.organized(catalog, ns)
    head = await catalog.index_head(ns)
    stays = PlacementPlan(routed_episodes=[Move(1, 1, support.routing())], moves=[Move(2, 1, support.routing())])
    await catalog.apply_plan(ns, stays, now_ns=NOW)
    assert {memory.state for memory in await catalog.memories(ns, keys[:6])} == {MemoryState.ROUTED}
    assert {memory.state for memory in await catalog.memories(ns, keys[6:])} == {MemoryState.EMBEDDED}
    assert await catalog.index_head(ns) == head
    await support.assert_consistent(catalog, ns)


async def test_a_vote_that_comes_when_memories_are_routed_already_is_recorded_with_them(
    catalog: Catalog, ns: int
) -> None:
    keys = await support.organized(catalog, ns)
    voted = replace(support.routing(), vote=1)
    for decision in (support.routing(), voted):
        plan = PlacementPlan(routed_episodes=[Move(1, 1, decision)])
        await catalog.apply_plan(ns, plan, now_ns=NOW)
    members = [m for m in await catalog.memories(ns, keys) if m.episode == 1]
    assert {(memory.state, memory.routing) for memory in members} == {(MemoryState.ROUTED, voted)}


async def test_a_memory_placed_again_has_one_placement_and_its_new_words_only(catalog: Catalog, ns: int) -> None:
    keys = await support.organized(catalog, ns)
    again = support.placement(keys[0], 2, 3, lexical="blue", seed=99)
    await catalog.apply_plan(ns, PlacementPlan(placements=[again]), now_ns=NOW)
    await support.assert_consistent(catalog, ns)
    assert (await catalog.lexical(ns, ["n0"], limit=5)).keys.tolist() == []
    found = await catalog.lexical(ns, ["blue"], limit=5)
    assert (found.keys.tolist(), found.episodes.tolist()) == ([keys[0]], [3])


async def test_an_outdated_put_has_no_vector(catalog: Catalog, ns: int) -> None:
    keys = await support.organized(catalog, ns)
    await catalog.delete(ns, "m-0", etag="", now_ns=NOW)
    ops = await catalog.read_index_ops(ns, after=0, limit=100)
    (put,) = [op for op in ops if op.put and op.placement_id == ops[-1].placement_id]
    assert put.vector is None
    assert not ops[-1].put
    assert sum(op.vector is not None for op in ops) == len(keys) - 1


async def test_a_memory_deleted_before_its_plan_is_skipped_and_counts_stay_true(catalog: Catalog, ns: int) -> None:
    keys = await support.store_keys(catalog, ns, 3)
    vectors = [support.unit(key) for key in keys]
    await catalog.delete(ns, "m-1", etag="", now_ns=NOW)
    plan = PlacementPlan(
        clusters=[support.cluster(1, count=3, centroids=[support.centroid(vectors)])],
        episodes=[support.episode(1, 1, vectors)],
        placements=[support.placement(key, 1, 1) for key in keys],
    )
    await catalog.apply_plan(ns, plan, now_ns=NOW)
    await support.assert_consistent(catalog, ns)
    assert (await catalog.clusters(ns))[0].memory_count == 2


async def test_a_plan_that_would_lose_memories_changes_nothing(catalog: Catalog, ns: int) -> None:
    keys = await support.organized(catalog, ns)
    before = await catalog.revision()
    for plan in (
        PlacementPlan(removed_clusters=[1]),
        PlacementPlan(placements=[support.placement(keys[0], 77, 1)]),
        PlacementPlan(placements=[support.placement(keys[0], 1, 77)]),
        PlacementPlan(clusters=[support.cluster(5, count=0)], moves=[Move(1, 78, support.routing())]),
        PlacementPlan(routed_episodes=[Move(1, 2, support.routing())]),
    ):
        with pytest.raises(ValueError, match=r"cluster|episodes"):
            await catalog.apply_plan(ns, plan, now_ns=NOW)
    assert await catalog.revision() == before
    await support.assert_consistent(catalog, ns)


async def test_an_emptied_cluster_can_be_removed(catalog: Catalog, ns: int) -> None:
    await support.organized(catalog, ns)
    plan = PlacementPlan(moves=[Move(3, 1, support.routing())], removed_clusters=[2])
    await catalog.apply_plan(ns, plan, now_ns=NOW)
    assert [cluster.cluster for cluster in await catalog.clusters(ns)] == [1]
    await support.assert_consistent(catalog, ns)


async def test_a_deleted_memory_is_gone_everywhere(catalog: Catalog, ns: int) -> None:
    keys = await support.organized(catalog, ns)
    link = Link("m-1", LinkKind.CAUSAL, "because", 0.5)
    kept = Link("m-2", LinkKind.SIMILAR, "alike", 0.25)
    await catalog.evolve(ns, [Evolution(keys[0], 1, keys[0], add_links=(link, kept))], now_ns=NOW)
    await catalog.evolve(ns, [Evolution(keys[0], 1, keys[0], superseded_by="m-1")], now_ns=NOW)
    await catalog.put_clusters(ns, [with_representatives(c, keys) for c in await catalog.clusters(ns)])
    etag = str((await catalog.memory(ns, "m-1")).revision)
    await catalog.delete(ns, "m-1", etag=etag, now_ns=NOW)
    with pytest.raises(NotFound):
        await catalog.memory(ns, "m-1")
    assert await catalog.memories(ns, [keys[1]]) == []
    assert (await catalog.lexical(ns, ["n1"], limit=5)).keys.tolist() == []
    other = await catalog.memory(ns, "m-0")
    assert (other.links, other.superseded_by) == ((kept,), "")
    home, elsewhere = await catalog.clusters(ns)
    assert keys[1] not in home.representatives
    assert keys[1] not in elsewhere.representatives
    assert home.profile_stale
    await support.assert_consistent(catalog, ns)


def with_representatives(cluster: Cluster, keys: list[int]) -> Cluster:
    """Return the cluster with all keys as representatives."""
    return replace(cluster, representatives=tuple(keys))


async def test_deleting_all_memories_leaves_no_closed_episode(catalog: Catalog, ns: int) -> None:
    await support.organized(catalog, ns)
    for i in range(9):
        await catalog.delete(ns, f"m-{i}", etag="", now_ns=NOW)
        await support.assert_consistent(catalog, ns)
    assert [episode.episode for episode in await catalog.episodes(ns)] == [3]
    assert (await catalog.stats(ns)).by_state[MemoryState.EMBEDDED] == 0


async def test_a_delete_with_an_old_etag_deletes_nothing(catalog: Catalog, ns: int) -> None:
    await support.store(catalog, ns, [NewMemory(text="x", memory_id="a")])
    current = str((await catalog.memory(ns, "a")).revision)
    with pytest.raises(EtagMismatch) as refused:
        await catalog.delete(ns, "a", etag="0", now_ns=NOW)
    assert refused.value.current == current
    with pytest.raises(NotFound):
        await catalog.delete(ns, "", etag="", now_ns=NOW)
    assert (await catalog.memory(ns, "a")).text == "x"


async def test_numbers_are_never_given_out_twice(reopen: Reopen) -> None:
    catalog = await reopen()
    ns = (await support.namespace(catalog)).ns
    keys = await support.organized(catalog, ns)
    used = {op.placement_id for op in await catalog.current_placements(ns, after=0, limit=100)}
    for i in range(9):
        await catalog.delete(ns, f"m-{i}", etag="", now_ns=NOW)
    head = (await catalog.index_head(ns))[0]
    await catalog.ack_index_ops(ns, through=head)
    assert await catalog.read_index_ops(ns, after=0, limit=10) == []
    catalog = await reopen()
    assert await catalog.index_head(ns) == (head, 0, 0)
    again = await support.organized(catalog, ns)
    assert min(again) > max(keys)
    new = {op.placement_id for op in await catalog.current_placements(ns, after=0, limit=100)}
    assert min(new) > max(used)
    assert (await catalog.read_index_ops(ns, after=0, limit=1))[0].seq > head


async def test_placements_are_paged_by_id(catalog: Catalog, ns: int) -> None:
    await support.organized(catalog, ns)
    whole = await catalog.current_placements(ns, after=0, limit=100)
    ids = [op.placement_id for op in whole]
    assert ids == sorted(ids)
    rest = await catalog.current_placements(ns, after=ids[3], limit=2)
    assert [op.placement_id for op in rest] == ids[4:6]
    assert await catalog.keys_of_placements(ns, [max(ids) + 1]) == {}


async def test_placements_of_some_clusters_are_those_of_no_other(catalog: Catalog, ns: int) -> None:
    await support.organized(catalog, ns)
    every = await catalog.current_placements(ns, after=0, limit=100)
    for clusters in ([1], [2, 1], [77], []):
        found = await catalog.placements_in(ns, clusters)
        expected = {op.placement_id for op in every if op.cluster in clusters}
        assert {op.placement_id for op in found} == expected
        assert len(found) == len(expected)
        assert all(op.put and op.vector is not None for op in found)
    assert await catalog.placements_in(ns + 1, [1, 2]) == []


async def test_a_number_of_a_removed_cluster_or_episode_is_never_the_next_one(reopen: Reopen) -> None:
    catalog = await reopen()
    namespace = await support.namespace(catalog)
    assert (namespace.next_cluster, namespace.next_episode) == (1, 1)
    await support.organized(catalog, namespace.ns)
    await catalog.put_clusters(namespace.ns, [support.cluster(9, count=0)])
    await catalog.apply_plan(namespace.ns, PlacementPlan(removed_clusters=[9]), now_ns=NOW)
    for number in (6, 7, 8):  # the whole of episode 3, then the episode itself
        await catalog.delete(namespace.ns, f"m-{number}", etag="", now_ns=NOW)
    await catalog.apply_plan(namespace.ns, PlacementPlan(removed_clusters=[2]), now_ns=NOW)
    catalog = await reopen()
    assert [c.cluster for c in await catalog.clusters(namespace.ns)] == [1]
    assert [e.episode for e in await catalog.episodes(namespace.ns)] == [1, 2]
    again = await catalog.get_namespace(namespace.name)
    assert (again.next_cluster, again.next_episode) == (10, 4)


async def test_statistics_count_what_is_open_archived_and_deleted_and_name_who_waits(
    catalog: Catalog, ns: int
) -> None:
    keys = await support.organized(catalog, ns)
    archived = replace(support.cluster(3, count=0), state=ClusterState.ARCHIVED)
    await catalog.put_clusters(ns, [archived])
    await catalog.delete(ns, "m-0", etag="", now_ns=NOW)
    await catalog.record_failure(ns, [keys[1]], error="an older reason", max_attempts=9, not_before_ns=NOW + 1)
    await catalog.record_failure(ns, [keys[2]], error="the newest reason", max_attempts=9, not_before_ns=NOW + 2)
    stats = await catalog.stats(ns)
    assert (stats.clusters, stats.archived_clusters) == (2, 1)
    assert (stats.episodes, stats.open_episodes) == (3, 1)
    assert (stats.created, stats.deleted, stats.placed, stats.share) == (9, 1, 8, 1.0)
    assert stats.waiting[MemoryState.EMBEDDED] == Waiting(2, NOW, "the newest reason")
    assert stats.waiting[MemoryState.STORED] == Waiting()
