"""Episodes are cut, routed and split as design section 5 says, and the map stays consistent."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clag_server.memory.centroids import unit
from clag_server.memory.cluster_map import ClusterMap
from clag_server.memory.config import OrganizeConfig
from clag_server.memory.placing import Placer
from clag_server.types.cluster import PlacementPlan
from clag_server.types.memory import Memory, Vector
from tests.memory.builders import DIM, direction, memory


def place(
    cluster_map: ClusterMap, memories: list[Memory], vectors: list[Vector], **config: object
) -> PlacementPlan:
    placer = Placer(cluster_map, OrganizeConfig(**config), now_ns=1)  # type: ignore[arg-type]
    placer.place(memories, np.stack(vectors), ["" for _ in memories])
    return placer.plan()


def close_all(cluster_map: ClusterMap, **config: object) -> PlacementPlan:
    placer = Placer(cluster_map, OrganizeConfig(**config), now_ns=2)  # type: ignore[arg-type]
    for number in list(cluster_map.open_episodes.values()):
        placer.close(number, "test")
    return placer.plan()


def empty() -> ClusterMap:
    return ClusterMap(DIM, (), ())


def assert_consistent(cluster_map: ClusterMap) -> None:
    for number, cluster in cluster_map.clusters.items():
        episodes = [cluster_map.episodes[e] for e in cluster_map.cluster_episodes[number]]
        assert all(e.cluster == number for e in episodes)
        assert cluster.memory_count == sum(e.memory_count for e in episodes)
        closed = [unit(e.vector_sum) for e in episodes if not e.open]
        assert cluster.closed_episodes == len(closed)
        expected = np.sum(closed, axis=0) if closed else np.zeros(cluster_map.dim)
        np.testing.assert_allclose(cluster.vector_sum, expected, atol=1e-4)


def test_memories_of_one_session_and_topic_share_an_episode() -> None:
    cluster_map = empty()
    place(cluster_map, [memory(1), memory(2)], [direction(0), direction(0, tilt=0.3, towards=1)])
    assert len(cluster_map.episodes) == 1
    assert len(cluster_map.clusters) == 1


def test_another_topic_starts_another_episode_and_is_not_put_with_the_first() -> None:
    cluster_map = empty()
    place(cluster_map, [memory(1), memory(2)], [direction(0), direction(1)])
    first, second = cluster_map.episodes[1], cluster_map.episodes[2]
    assert not first.open
    assert second.open
    assert first.cluster != second.cluster


def test_interleaved_sessions_keep_their_own_episodes() -> None:
    cluster_map = empty()
    memories = [memory(i, session="a" if i % 2 else "b") for i in range(1, 9)]
    vectors = [direction(0 if i % 2 else 1) for i in range(1, 9)]
    place(cluster_map, memories, vectors)
    assert sorted((e.session_id, e.memory_count) for e in cluster_map.episodes.values()) == [("a", 4), ("b", 4)]


def test_a_full_episode_closes_and_the_next_one_finds_its_cluster_again() -> None:
    cluster_map = empty()
    place(cluster_map, [memory(i) for i in range(1, 46)], [direction(0)] * 45, episode_max=20)
    assert [e.memory_count for e in cluster_map.episodes.values()] == [20, 20, 5]
    assert {e.cluster for e in cluster_map.episodes.values()} == {1}


def test_an_episode_that_began_far_off_joins_the_near_cluster_when_it_closes() -> None:
    cluster_map = empty()
    place(cluster_map, [memory(1)], [direction(0)])
    close_all(cluster_map)
    drifting = [direction(1), direction(0, tilt=0.75, towards=1), direction(0), direction(0)]
    place(cluster_map, [memory(i, session="t") for i in range(2, 6)], drifting)
    provisional = cluster_map.episodes[2].cluster
    plan = close_all(cluster_map)
    assert provisional != 1
    assert cluster_map.episodes[2].cluster == 1
    assert [move.cluster for move in plan.moves] == [1]
    assert plan.removed_clusters == [provisional]
    assert "nearest cluster" in plan.moves[0].routing.reason
    assert_consistent(cluster_map)


def test_a_cluster_over_the_bound_splits_along_its_topics() -> None:
    cluster_map = empty()
    key = 0
    for session in range(12):
        axis, tilt = (0, 1) if session % 2 else (1, 0)
        for _ in range(5):
            key += 1
            place(
                cluster_map,
                [memory(key, session=f"s{session}")],
                [direction(axis, tilt=0.8, towards=tilt)],
                cluster_cosine=0.3,
                cluster_max=40,
            )
        close_all(cluster_map, cluster_cosine=0.3, cluster_max=40)
    assert len(cluster_map.clusters) == 2
    for number, episodes in cluster_map.cluster_episodes.items():
        axes = {int(np.argmax(cluster_map.episodes[e].vector_sum)) for e in episodes}
        assert len(axes) == 1, number
    assert_consistent(cluster_map)


def test_a_pinned_cluster_never_splits() -> None:
    from dataclasses import replace

    cluster_map = empty()
    place(cluster_map, [memory(1)], [direction(0)])
    close_all(cluster_map)
    cluster_map.put_cluster(replace(cluster_map.clusters[1], pinned=True))
    for i in range(2, 30):
        place(
            cluster_map,
            [memory(i, session=f"s{i}")],
            [direction(0, tilt=0.5, towards=1 + i % 2)],
            cluster_max=10,
            cluster_cosine=-1.0,
        )
        close_all(cluster_map, cluster_max=10, cluster_cosine=-1.0)
    assert list(cluster_map.clusters) == [1]


def test_the_same_input_gives_the_same_plan() -> None:
    rng = np.random.default_rng(7)
    rows = rng.normal(size=(60, DIM)).astype(np.float32)
    vectors = list(rows / np.linalg.norm(rows, axis=1, keepdims=True))
    memories = [memory(i, session=f"s{i % 3}") for i in range(60)]
    first, second = empty(), empty()
    place(first, memories, vectors)
    place(second, memories, vectors)
    assert [(e.cluster, e.memory_count) for e in first.episodes.values()] == [
        (e.cluster, e.memory_count) for e in second.episodes.values()
    ]


class Stored:
    """What a catalog would hold: it refuses plans that name what it does not have."""

    def __init__(self) -> None:
        self.clusters: set[int] = set()
        self.cluster_of: dict[int, int] = {}
        self.episode_of: dict[int, int] = {}

    def apply(self, plan: PlacementPlan) -> None:
        self.clusters |= {cluster.cluster for cluster in plan.clusters}
        for placement in plan.placements:
            assert placement.cluster in self.clusters
            self.episode_of[placement.key] = placement.episode
            self.cluster_of[placement.key] = placement.cluster
        for move in [*plan.moves, *plan.routed_episodes]:
            assert move.cluster in self.clusters
            for key in [k for k, e in self.episode_of.items() if e == move.episode]:
                assert move in plan.moves or self.cluster_of[key] == move.cluster
                self.cluster_of[key] = move.cluster
        for number in plan.removed_clusters:
            assert number in self.clusters
            assert number not in self.cluster_of.values()
            self.clusters.remove(number)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, DIM - 1), st.floats(0, 1)), min_size=1, max_size=30),
        min_size=1,
        max_size=8,
    )
)
def test_every_plan_can_be_applied_and_leaves_each_memory_where_the_map_says(
    batches: list[list[tuple[int, int, float]]],
) -> None:
    cluster_map, stored = empty(), Stored()
    config = OrganizeConfig(episode_max=5, cluster_max=12)
    key = 0
    for batch in batches:
        placer = Placer(cluster_map, config, now_ns=key)
        memories = [memory(key + i, session=f"s{s}") for i, (s, _, _) in enumerate(batch, start=1)]
        rows = np.stack([direction(axis, tilt=tilt, towards=(axis + 1) % DIM) for _, axis, tilt in batch])
        placer.place(memories, rows, ["" for _ in memories])
        key += len(batch)
        stored.apply(placer.plan())
    placer = Placer(cluster_map, config, now_ns=key)
    for number in list(cluster_map.open_episodes.values()):
        placer.close(number, "test")
    stored.apply(placer.plan())
    assert_consistent(cluster_map)
    assert cluster_map.memory_count == key
    assert not cluster_map.open_episodes
    assert stored.clusters == set(cluster_map.clusters)
    assert len(stored.cluster_of) == key
    for k, episode in stored.episode_of.items():
        assert stored.cluster_of[k] == cluster_map.episodes[episode].cluster
