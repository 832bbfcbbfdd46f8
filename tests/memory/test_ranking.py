"""Stage one and stage two against the formulas of design section 6, computed the slow way."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from clag_server.catalog.api import EpisodeMembers
from clag_server.memory.config import RetrieveConfig
from clag_server.memory.ranking import rank
from clag_server.memory.selecting import EpisodeScores, min_max, pick_episodes, score_episodes

CONFIG = RetrieveConfig()
unit_floats = st.floats(0, 1, width=32)


def members(episodes: list[int], vectors: NDArray[np.floating]) -> EpisodeMembers:
    """Keys 1..n; positions count up inside each episode."""
    positions = [episodes[:i].count(e) for i, e in enumerate(episodes)]
    return EpisodeMembers(
        np.arange(1, len(episodes) + 1, dtype=np.int64),
        np.array(episodes, dtype=np.int64),
        np.array(positions, dtype=np.int64),
        vectors.astype(np.float32),
        np.full(len(episodes), "", dtype=np.object_),
    )


def slow_scores(m: EpisodeMembers, query: NDArray[np.float32], lexical: NDArray[np.float64]) -> dict[int, float]:
    """The formula as it is written down: one candidate after the other."""
    cosines = m.vectors.astype(np.float64) @ query
    weight = 0.5 if lexical.any() else 1.0
    h = weight * min_max(cosines) + (1 - weight) * min_max(lexical)
    at = {(int(e), int(p)): float(x) for e, p, x in zip(m.episodes, m.positions, h, strict=True)}
    low = float(h.min())
    scores = {}
    for key, e, p, x in zip(m.keys, m.episodes, m.positions, h, strict=True):
        best = max(v for (episode, _), v in at.items() if episode == e)
        around = at.get((int(e), int(p) - 1), low) + at.get((int(e), int(p) + 1), low)
        scores[int(key)] = float(x) + 0.2 * around + 0.8 * best
    return scores


@given(st.data())
def test_ranking_equals_the_formula_computed_one_by_one(data: st.DataObject) -> None:
    episodes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=30))
    n = len(episodes)
    vectors = data.draw(hnp.arrays(np.float32, (n, 4), elements=unit_floats))
    lexical = data.draw(hnp.arrays(np.float64, n, elements=st.sampled_from([0.0, 0.5, 3.0, 7.5])))
    query = np.array([1.0, 0.5, 0.0, 0.25], dtype=np.float32)
    m = members(episodes, vectors)
    ranked = rank(m, query, lexical, CONFIG)
    expected = slow_scores(m, query, lexical)
    assert sorted(ranked.keys.tolist()) == sorted(expected)
    np.testing.assert_allclose(ranked.scores, [expected[int(k)] for k in ranked.keys], atol=1e-5)
    assert np.all(np.diff(ranked.scores) <= 1e-9)


def test_words_that_match_nothing_leave_the_ranking_to_the_vectors() -> None:
    vectors = np.eye(4, dtype=np.float32)
    ranked = rank(members([1, 2, 3, 4], vectors), vectors[2], np.zeros(4), CONFIG)
    assert ranked.keys[0] == 3


def test_ties_are_broken_by_arrival() -> None:
    vectors = np.ones((5, 4), dtype=np.float32) / 2
    ranked = rank(members([5, 4, 3, 2, 1], vectors), vectors[0], np.zeros(5), CONFIG)
    assert ranked.keys.tolist() == [1, 2, 3, 4, 5]


def test_no_candidates_give_no_hits() -> None:
    ranked = rank(members([], np.zeros((0, 4))), np.ones(4, dtype=np.float32), np.zeros(0), CONFIG)
    assert len(ranked.keys) == 0


def scored_episodes(
    sizes: list[int], cosines: list[float], lexical: list[float], clusters: list[int]
) -> EpisodeScores:
    n = len(sizes)
    return score_episodes(
        np.arange(1, n + 1, dtype=np.int64),
        np.array(clusters, dtype=np.int64),
        np.array(sizes, dtype=np.int64),
        np.array(cosines, dtype=np.float64),
        np.array(lexical, dtype=np.float64),
        dense_weight=0.5,
    )


def test_picking_stops_at_the_gap_but_takes_the_minimum_first() -> None:
    scored = scored_episodes([20] * 6, [1.0, 0.9, 0.2, 0.1, 0.1, 0.0], [0.0] * 6, [1] * 6)
    picked = pick_episodes(scored, CONFIG, total=1000, max_clusters=0)
    assert picked.tolist() == [0, 1, 2]


def test_picking_stops_at_the_share_of_the_memories() -> None:
    scored = scored_episodes([20] * 10, [1.0 - i / 100 for i in range(10)], [0.0] * 10, [1] * 10)
    picked = pick_episodes(scored, RetrieveConfig(gap=2.0), total=400, max_clusters=0)
    assert len(picked) * 20 == 80


def test_the_cluster_cap_passes_over_further_clusters() -> None:
    scored = scored_episodes([30] * 4, [1.0, 0.9, 0.8, 0.7], [0.0] * 4, [1, 2, 1, 3])
    picked = pick_episodes(scored, RetrieveConfig(gap=2.0, share=1.0), total=120, max_clusters=1)
    assert picked.tolist() == [0, 2]


@given(
    st.lists(st.tuples(st.integers(1, 40), st.floats(-1, 1), st.floats(0, 9)), min_size=1, max_size=100),
    st.integers(0, 5),
)
def test_picking_respects_every_bound(rows: list[tuple[int, float, float]], max_clusters: int) -> None:
    sizes, cosines, lexical = (list(column) for column in zip(*rows, strict=True))
    clusters = [i % 7 for i in range(len(rows))]
    scored = scored_episodes(sizes, cosines, lexical, clusters)
    config = RetrieveConfig(max_candidates=200, max_episodes=12)
    picked = pick_episodes(scored, config, total=sum(sizes), max_clusters=max_clusters)
    assert 1 <= len(picked) <= 12
    assert scored.sizes[picked].sum() <= max(200, sizes[picked[0]])
    assert len(set(scored.clusters[picked].tolist())) <= (max_clusters or 7)
    assert np.all(np.diff(scored.scores[picked]) <= 0)
    assert scored.scores[picked[0]] == scored.scores.max()
