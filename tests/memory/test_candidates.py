"""Stage one scores every episode of a small namespace, and of a large one those that can win."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from clag_server.memory.candidates import candidate_episodes
from clag_server.memory.cluster_map import ClusterMap
from clag_server.memory.config import RetrieveConfig
from clag_server.memory.selecting import min_max, pick_episodes, score_episodes
from clag_server.types.cluster import Cluster, ClusterState, Episode
from clag_server.types.memory import Vector

DIM = 32
CLUSTERS = 60
EPISODES_EACH = 12
NO_WORDS = np.zeros(0, dtype=np.int64)


def unit(vector: NDArray[np.floating[Any]]) -> Vector:
    return (vector / np.linalg.norm(vector)).astype(np.float32)


@pytest.fixture(scope="module")
def large() -> ClusterMap:
    """720 episodes around 60 centres; the last episode of each session's cluster is open."""
    random = np.random.default_rng(7)
    centers = [unit(random.normal(size=DIM)) for _ in range(CLUSTERS)]
    episodes, clusters = [], []
    for c, center in enumerate(centers, start=1):
        sums = [unit(center + 0.5 * unit(random.normal(size=DIM))) for _ in range(EPISODES_EACH)]
        clusters.append(
            Cluster(
                c, f"t{c}", "", (), (), np.sum(sums, axis=0).astype(np.float32), EPISODES_EACH, 10 * EPISODES_EACH,
                ClusterState.ACTIVE, False, False, 0, 0, 0,
            )
        )  # fmt: skip
        for i, vector in enumerate(sums):
            number = (c - 1) * EPISODES_EACH + i + 1
            episodes.append(
                Episode(number, f"s{number}", c, (10 * vector).astype(np.float32), 10, 0, 9, number == 700, 0)
            )
    return ClusterMap(DIM, episodes, clusters)


def queries(number: int) -> list[Vector]:
    random = np.random.default_rng(11)
    return [unit(random.normal(size=DIM)) for _ in range(number)]


def picked(cluster_map: ClusterMap, vector: Vector, config: RetrieveConfig) -> list[int]:
    found = candidate_episodes(cluster_map, vector, None, with_words=NO_WORDS, permitted=None, config=config)
    lexical = np.zeros(len(found.numbers))
    scored = score_episodes(
        found.numbers, found.clusters, found.sizes, found.cosines, lexical, dense_weight=0.5, floor=found.floor
    )
    rows = pick_episodes(scored, config, total=cluster_map.memory_count, max_clusters=0)
    return [int(n) for n in scored.episodes[rows]]


def test_a_small_namespace_is_scored_whole(large: ClusterMap) -> None:
    config = RetrieveConfig(exact_episodes=720)
    found = candidate_episodes(large, queries(1)[0], None, with_words=NO_WORDS, permitted=None, config=config)
    assert len(found.numbers) == 720
    assert found.floor is None


def test_a_large_namespace_gives_the_same_best_episodes_for_a_fraction_of_the_work(large: ClusterMap) -> None:
    exact, near = RetrieveConfig(), RetrieveConfig(exact_episodes=100, near_episodes=150)
    same = []
    for vector in queries(40):
        whole, part = picked(large, vector, exact), picked(large, vector, near)
        same.append(len(set(whole[:5]) & set(part[:5])) / 5)
    assert np.mean(same) > 0.9
    found = candidate_episodes(large, queries(1)[0], None, with_words=NO_WORDS, permitted=None, config=near)
    assert 150 <= len(found.numbers) <= 150 + EPISODES_EACH


def test_episodes_with_words_of_the_query_and_open_ones_are_scored_wherever_they_are(large: ClusterMap) -> None:
    config = RetrieveConfig(exact_episodes=100, near_episodes=20)
    vector = queries(1)[0]
    far = np.array([5, 5, 333, 719], dtype=np.int64)
    found = candidate_episodes(large, vector, None, with_words=far, permitted=None, config=config)
    assert {5, 333, 719, 700} <= set(found.numbers.tolist())
    assert list(found.numbers) == sorted(set(found.numbers.tolist()))


def test_what_a_filter_leaves_is_scored_whole_when_it_is_little(large: ClusterMap) -> None:
    config = RetrieveConfig(exact_episodes=100, near_episodes=20)
    left = np.array([700, 3, 3, 250], dtype=np.int64)
    found = candidate_episodes(large, queries(1)[0], None, with_words=NO_WORDS, permitted=left, config=config)
    assert found.numbers.tolist() == [3, 250, 700]
    assert found.clusters.tolist() == [1, 21, 59]


def test_episodes_that_are_gone_are_left_out(large: ClusterMap) -> None:
    config = RetrieveConfig(exact_episodes=100, near_episodes=20)
    gone = np.array([99_999], dtype=np.int64)
    found = candidate_episodes(large, queries(1)[0], None, with_words=gone, permitted=None, config=config)
    assert 99_999 not in found.numbers


def test_a_floor_below_the_values_counts_as_zero() -> None:
    assert min_max(np.array([0.5, 1.0]), floor=0.0).tolist() == [0.5, 1.0]
    assert min_max(np.array([0.5, 1.0]), floor=0.7).tolist() == [0.0, 1.0]
