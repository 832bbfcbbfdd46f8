"""Stage one on a namespace: its episodes scored for a query, and how much of it that looks at.

`selecting` says how episodes are scored and picked; here is from where.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clag_server.catalog.api import LexicalHits
from clag_server.memory.candidates import NearClusters, candidate_episodes
from clag_server.memory.cluster_map import ClusterMap
from clag_server.memory.config import RetrieveConfig
from clag_server.memory.permitted import Permitted
from clag_server.memory.selecting import EpisodeScores, score_episodes
from clag_server.types.memory import Vector
from clag_server.types.retrieval import SearchSpace

__all__ = ["in_question", "score_candidates", "search_space"]


def score_candidates(
    vector: Vector, hits: LexicalHits, near: NearClusters | None, permitted: Permitted, config: RetrieveConfig
) -> EpisodeScores:
    """Score the episodes that may be picked: of searched clusters, holding a permitted memory.

    Args:
        vector: The query (dim,), a unit vector or zeros.
        hits: What its words match.
        near: What `near_clusters` returned for it.
        permitted: What it may see.
        config: Weights and bounds.
    """
    allowed = permitted.episodes
    found = candidate_episodes(
        permitted.cluster_map,
        vector,
        near,
        with_words=np.concatenate([hits.episodes, permitted.archived_episodes()]),
        permitted=allowed,
        config=config,
    )
    numbers = found.numbers
    sizes = found.sizes if allowed is None else _counted(numbers, allowed)
    keep = (sizes > 0) & permitted.clusters(found.clusters)
    numbers = numbers[keep]
    seen = permitted.keys(hits.keys)
    return score_episodes(
        numbers,
        found.clusters[keep],
        sizes[keep],
        found.cosines[keep],
        _best(numbers, hits.episodes[seen], hits.scores[seen]),
        dense_weight=config.dense_weight,
        floor=found.floor,
    )


def in_question(scored: EpisodeScores, permitted: Permitted, config: RetrieveConfig) -> int:
    """Return how many memories might be picked: those that a filter leaves, else all of the namespace."""
    cluster_map = permitted.cluster_map
    if len(cluster_map.episode_centroids) <= config.exact_episodes:
        return int(scored.sizes.sum())
    return cluster_map.memory_count if permitted.matching is None else len(permitted.matching.keys)


def search_space(cluster_map: ClusterMap, scored: EpisodeScores, picked: NDArray[np.int64]) -> SearchSpace:
    """Return how much of the namespace the picked episodes (rows of `scored`) are."""
    clusters = cluster_map.clusters
    selected = np.unique(scored.clusters[picked])
    return SearchSpace(
        total=cluster_map.memory_count,
        in_selected_clusters=sum(clusters[int(c)].memory_count for c in selected),
        in_picked_episodes=int(scored.sizes[picked].sum()),
        clusters_total=len(clusters),
        clusters_selected=len(selected),
        episodes_total=len(cluster_map.episodes),
        episodes_picked=len(picked),
    )


def _rows(numbers: NDArray[np.int64], wanted: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return for each of `wanted` its row in `numbers`, and whether it is there (rows of absent ones are 0)."""
    if len(numbers) == 0:
        return np.zeros(len(wanted), dtype=np.int64), np.zeros(len(wanted), dtype=np.bool_)
    order = np.argsort(numbers, kind="stable")
    places = np.minimum(np.searchsorted(numbers, wanted, sorter=order), len(numbers) - 1)
    rows = order[places]
    return rows, numbers[rows] == wanted


def _counted(numbers: NDArray[np.int64], members: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how often each number occurs in `members`."""
    rows, known = _rows(numbers, members)
    return np.bincount(rows[known], minlength=len(numbers))[: len(numbers)].astype(np.int64)


def _best(
    numbers: NDArray[np.int64], members: NDArray[np.int64], scores: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the best score of each number, zero where it has none."""
    rows, known = _rows(numbers, members)
    best = np.zeros(len(numbers), dtype=np.float64)
    np.maximum.at(best, rows[known], scores[known])
    return best
