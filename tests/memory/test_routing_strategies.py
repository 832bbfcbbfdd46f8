"""Strategies to compare with, routing per memory, and the faults of earlier programs that must not come back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clag_server.memory.centroids import unit
from clag_server.memory.cluster_map import ClusterMap
from clag_server.memory.config import OrganizeConfig
from clag_server.memory.placing import Placer
from clag_server.memory.splitting import k_means
from clag_server.models.scripted import Script
from clag_server.types.competence import TrustPolicy
from clag_server.types.memory import DecidedBy, FallbackCause, MemoryState
from clag_server.types.namespace import NamespaceSettings, RoutingUnit
from clag_server.types.routing import Strategy, UnitSetting
from tests.memory.builders import DIM, direction, memory
from tests.memory.routing_support import all_memories, ingest, prefers, routed, session
from tests.memory.system import NAMESPACE, found, get, remember, rewrite, system_on, until
from tests.memory.test_placing import Stored, assert_consistent, empty


def place_sessions(cluster_map: ClusterMap, config: OrganizeConfig, axes: list[int], *, each: int = 5) -> Stored:
    """Place one session of `each` memories along each axis in turn, every one closed at its end."""
    stored = Stored()
    key = len(cluster_map.episodes) * each
    for number, axis in enumerate(axes):
        placer = Placer(cluster_map, config, now_ns=key)
        items = [memory(key + i, session=f"s{key}-{number}") for i in range(1, each + 1)]
        rows = np.stack([direction(axis, tilt=0.05 * i, towards=(axis + 1) % DIM) for i in range(each)])
        placer.place(items, rows, ["" for _ in items])
        for episode in list(cluster_map.open_episodes.values()):
            placer.close(episode, "test")
        stored.apply(placer.plan())
        key += each
    return stored


def axes_by_cluster(cluster_map: ClusterMap) -> dict[int, set[int]]:
    return {
        number: {int(np.argmax(cluster_map.episodes[e].vector_sum)) for e in episodes}
        for number, episodes in cluster_map.cluster_episodes.items()
    }


def test_kmeans_gathers_the_first_memories_and_then_parts_them_by_topic() -> None:
    cluster_map, config = empty(), OrganizeConfig(strategy=Strategy.KMEANS, cold_start=60)
    place_sessions(cluster_map, config, [0, 2, 4] * 3)
    assert len(cluster_map.clusters) == 1
    place_sessions(cluster_map, config, [0, 2, 4])
    assert sorted(axes_by_cluster(cluster_map).values(), key=min) == [{0}, {2}, {4}]
    assert_consistent(cluster_map)


def test_after_the_cold_start_kmeans_takes_the_nearest_centroid_however_far() -> None:
    cluster_map, config = empty(), OrganizeConfig(strategy=Strategy.KMEANS, cold_start=60)
    place_sessions(cluster_map, config, [0, 2, 4] * 4)
    place_sessions(cluster_map, config, [6, 0])
    assert len(cluster_map.clusters) == 3
    assert {0} in [axes & {0} for axes in axes_by_cluster(cluster_map).values()]
    assert_consistent(cluster_map)


def test_kmeans_clusters_split_over_the_bound() -> None:
    cluster_map = empty()
    config = OrganizeConfig(strategy=Strategy.KMEANS, cold_start=20, cold_clusters=2, cluster_max=30)
    place_sessions(cluster_map, config, [0, 2, 4, 6] * 5)
    assert len(cluster_map.clusters) > 2
    assert all(cluster.memory_count <= 30 for cluster in cluster_map.clusters.values())


def test_global_keeps_everything_in_one_cluster_of_any_size() -> None:
    cluster_map, config = empty(), OrganizeConfig(strategy=Strategy.GLOBAL, cluster_max=10)
    place_sessions(cluster_map, config, [0, 2, 4] * 4)
    assert list(cluster_map.clusters) == [1]
    assert cluster_map.clusters[1].memory_count == 60


@pytest.mark.parametrize("strategy", list(Strategy))
def test_every_strategy_gives_the_same_plan_for_the_same_input(strategy: Strategy) -> None:
    config = OrganizeConfig(strategy=strategy, cold_start=40, cluster_max=25)
    first, second = empty(), empty()
    for cluster_map in (first, second):
        place_sessions(cluster_map, config, [0, 2, 4, 1, 3, 0] * 3)
        assert_consistent(cluster_map)
    assert {n: e.cluster for n, e in first.episodes.items()} == {n: e.cluster for n, e in second.episodes.items()}


def test_kmeans_numbers_its_parts_without_gaps_and_survives_equal_rows() -> None:
    rows = np.stack([unit(np.eye(DIM, dtype=np.float32)[i % 2]) for i in range(10)])
    assert sorted(set(k_means(rows, 5).tolist())) == [0, 1]
    assert set(k_means(rows[[0] * 7], 3).tolist()) == {0}
    assert len(k_means(rows[:1], 3)) == 1


def test_routed_by_itself_each_memory_is_an_episode_that_is_closed_at_once() -> None:
    cluster_map = empty()
    placer = Placer(cluster_map, OrganizeConfig(), now_ns=1, unit=RoutingUnit.MEMORY)
    items = [memory(i) for i in range(1, 7)]
    placer.place(items, np.stack([direction(i % 2) for i in range(6)]), [""] * 6)
    stored = Stored()
    stored.apply(placer.plan())
    assert [e.memory_count for e in cluster_map.episodes.values()] == [1] * 6
    assert not cluster_map.open_episodes
    assert sorted(axes_by_cluster(cluster_map).values(), key=min) == [{0}, {1}]
    assert_consistent(cluster_map)


def test_a_session_whose_episode_is_open_when_the_unit_changes_closes_it_in_its_own_time() -> None:
    cluster_map = empty()
    Placer(cluster_map, OrganizeConfig(), now_ns=1).place([memory(1)], direction(0)[None], [""])
    placer = Placer(cluster_map, OrganizeConfig(), now_ns=2, unit=RoutingUnit.MEMORY)
    placer.place([memory(2)], direction(0)[None], [""])
    assert cluster_map.open_episodes == {"s": 1}
    assert [(e.memory_count, e.open) for e in cluster_map.episodes.values()] == [(1, True), (1, False)]


@pytest.mark.parametrize("by_namespace", [True, False])
async def test_a_namespace_or_the_server_can_route_each_memory_by_itself_and_questions_find_them(
    tmp_path: Path, by_namespace: bool
) -> None:
    script = Script()
    server = UnitSetting.EPISODE if by_namespace else UnitSetting.MEMORY
    async with system_on(
        tmp_path, script=script, trust=TrustPolicy.FULL, cluster_cosine=0.05, routing_unit=server
    ) as system:
        own = RoutingUnit.MEMORY if by_namespace else None
        await system.whole.create(NAMESPACE, NamespaceSettings(routing_unit=own), embedding_model="")
        for topic, axis in (("battery", 0), ("music", 1), ("garden", 2)):
            await ingest(system, session(topic, f"about {topic}", {axis: 1.0}, size=5), stream=topic)
        await routed(system)
        script.choose = prefers("music")
        await ingest(system, session("new", "hums at the charger", {0: 0.75, 1: 0.66}, size=2), stream="new")
        await routed(system)
        memories = await all_memories(system)
        hits = await found(system, "about music")
    assert len({m.episode for m in memories.values()}) == len(memories) == 17
    assert memories["new-0"].cluster == memories["new-1"].cluster == memories["music-0"].cluster
    assert memories["new-0"].routing is not None
    assert memories["new-0"].routing.decided_by is DecidedBy.SLM
    assert {hit.memory.memory_id for hit in hits[:5]} == {f"music-{n}" for n in range(5)}


async def test_numbers_of_clusters_and_episodes_are_never_given_out_twice(tmp_path: Path) -> None:
    seen: set[int] = set()
    async with system_on(tmp_path) as system:
        for n in range(4):
            await ingest(system, session(f"s{n}", f"topic {n}", {n: 1.0}), stream=f"s{n}")
            await routed(system)
            cluster = (await get(system, f"s{n}-0")).cluster
            assert cluster is not None
            assert cluster not in seen
            seen.add(cluster)
            for member in range(3):
                await system.edits.delete(NAMESPACE, f"s{n}-{member}", etag="")


async def test_an_id_means_the_same_memory_whatever_was_removed_before_it(tmp_path: Path) -> None:
    async with system_on(tmp_path) as system:
        await ingest(system, session("s", "about music", {1: 1.0}, size=6), stream="s")
        before = await all_memories(system)
        await system.edits.delete(NAMESPACE, "s-0", etag="")
        await system.edits.delete(NAMESPACE, "s-3", etag="")
        after = await all_memories(system)
    assert {i: (m.key, m.text, m.session_position) for i, m in after.items()} == {
        i: (m.key, m.text, m.session_position) for i, m in before.items() if i not in ("s-0", "s-3")
    }
    for survivor in after.values():
        assert {link.memory_id for link in survivor.links} <= set(after) - {survivor.memory_id}


async def test_centroids_follow_their_members(tmp_path: Path) -> None:
    async with system_on(tmp_path, cluster_cosine=0.01) as system:
        await ingest(system, session("a", "about music", {1: 1.0}), stream="a")
        await routed(system)
        state = (await system.registry.pipeline(NAMESPACE, create=False)).state
        cluster = (await get(system, "a-0")).cluster or 0
        before = state.map.centroid(cluster)
        await ingest(system, session("b", "about music", {1: 0.8, 2: 0.6}), stream="b")
        await routed(system)
        assert (await get(system, "b-0")).cluster == cluster
        after = state.map.centroid(cluster)
        expected = sum(unit(state.map.episodes[e].vector_sum) for e in state.map.cluster_episodes[cluster])
    assert float(before @ after) < 0.99
    np.testing.assert_allclose(after, unit(np.asarray(expected)), atol=1e-5)


async def test_a_rewritten_text_has_another_vector_and_speaks_for_its_new_words(tmp_path: Path) -> None:
    async with system_on(tmp_path) as system:
        await remember(system, ["violin concert orchestra sonata"] * 2, session="m")
        await remember(system, ["battery pack charge voltage cell"] * 2, session="b", first=2)
        old = await get(system, "m1", embedding=True)
        await system.edits.update(NAMESPACE, "m1", rewrite("battery pack charge voltage cell again"))
        await until(system, "m1", lambda m: m.state is MemoryState.EVOLVED)
        new = await get(system, "m1", embedding=True)
        other = await get(system, "m2", embedding=True)
        assert_consistent((await system.registry.pipeline(NAMESPACE, create=False)).state.map)
    assert old.embedding is not None
    assert new.embedding is not None
    assert other.embedding is not None
    assert float(old.embedding @ new.embedding) < 0.5
    assert float(new.embedding @ other.embedding) > 0.9


def test_one_candidate_is_a_decision_of_the_vectors_as_intended() -> None:
    cluster_map = empty()
    placer = Placer(cluster_map, OrganizeConfig(), now_ns=1, unasked=FallbackCause.NOT_TRUSTED)
    for number in (1, 2):
        placer.place([memory(number, session=f"s{number}")], direction(0)[None], [""])
        placer.close(cluster_map.open_episodes[f"s{number}"], "test")
    decisions = [move.routing for move in placer.plan().routed_episodes]
    assert [(d.fallback, d.awaits_slm, d.decided_by) for d in decisions] == [
        (FallbackCause.NONE, False, DecidedBy.VECTOR)
    ] * 2
