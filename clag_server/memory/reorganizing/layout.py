"""The clusters of a namespace at one moment, as geometry: closed episodes, where they are, and how well they fit.

All cosines are seen from what all episodes have in common, as in routing (`ClusterMap.episode_center`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clag_server.memory.cluster_map import ClusterMap
from clag_server.memory.config import OrganizeConfig
from clag_server.types.cluster import Cluster, ClusterState
from clag_server.types.memory import Matrix

__all__ = ["Fit", "Layout", "Numbers", "by_home", "centroids", "fit", "look", "unit_rows"]

Numbers = NDArray[np.int64]

_AT_ONCE = 2_000
"""Episodes read between two turns of the event loop."""

_ROWS = 4_096
"""Rows of one product, so that no temporary matrix is larger than some tens of MB."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A moment of a namespace.

    Attributes:
        episodes: The closed episodes of active clusters (e,), ascending.
        homes: The cluster of each (e,).
        sizes: The memories of each (e,).
        vectors: Their centroids (e, dim): unit rows, seen from the common center.
        clusters: The active clusters that hold a closed episode.
        movable: Those that a plan may touch: asked for, and not pinned.
        active: Number of all active clusters.
    """

    episodes: Numbers
    homes: Numbers
    sizes: Numbers
    vectors: Matrix
    clusters: Mapping[int, Cluster]
    movable: frozenset[int]
    active: int

    def rows_of(self, episodes: Collection[int]) -> Numbers:
        """Return the rows of those of the episodes that are in the layout, ascending."""
        return np.flatnonzero(np.isin(self.episodes, np.array(sorted(episodes), dtype=np.int64)))


@dataclass(frozen=True, slots=True)
class Fit:
    """How episodes fit their clusters, aligned (n,).

    Attributes:
        own: Cosine of each with the rest of its own cluster; NaN for one that is alone.
        other: Cosine with the nearest other cluster; 0 where there is none.
        nearest: That cluster, 0 where there is none.
    """

    own: NDArray[np.float64]
    other: NDArray[np.float64]
    nearest: Numbers

    @property
    def margins(self) -> NDArray[np.float64]:
        """How much nearer each is to its own cluster (n,); 0 for one that is alone, as in silhouettes.

        A cluster that points elsewhere is as far as any other: how far it points away says nothing.
        """
        return np.where(np.isnan(self.own), 0.0, np.nan_to_num(self.own) - np.maximum(self.other, 0.0))


async def look(cluster_map: ClusterMap, config: OrganizeConfig, only: Collection[int]) -> Layout:
    """Return the layout as it is now. `only` are the clusters that a plan may touch, empty for all."""
    clusters = {
        number: cluster
        for number, cluster in cluster_map.clusters.items()
        if cluster.state is ClusterState.ACTIVE and cluster.closed_episodes > 0
    }
    active = sum(cluster.state is ClusterState.ACTIVE for cluster in cluster_map.clusters.values())
    wanted = sorted(e for number in clusters for e in cluster_map.cluster_episodes.get(number, ()))
    rows: list[tuple[int, int, int]] = []
    vectors = []
    for start in range(0, len(wanted), _AT_ONCE):
        for number in wanted[start : start + _AT_ONCE]:
            episode = cluster_map.episodes.get(number)
            if episode is not None and not episode.open and episode.memory_count and episode.cluster in clusters:
                rows.append((number, episode.cluster, episode.memory_count))
                vectors.append(cluster_map.episode_centroids.get(number))
        await asyncio.sleep(0)  # a million memories are seventy thousand episodes
    center = cluster_map.episode_center(config.cluster_center_prior)
    table = np.array(rows, dtype=np.int64).reshape(len(rows), 3)
    matrix = np.stack(vectors) if vectors else np.zeros((0, cluster_map.dim), dtype=np.float32)
    return Layout(
        episodes=table[:, 0],
        homes=table[:, 1],
        sizes=table[:, 2],
        vectors=await asyncio.to_thread(lambda: unit_rows(matrix - center)),
        clusters=clusters,
        movable=frozenset(
            number for number, cluster in clusters.items() if not cluster.pinned and (not only or number in only)
        ),
        active=active,
    )


def unit_rows(matrix: Matrix) -> Matrix:
    """Return the rows (n, dim) divided by their lengths; zero rows stay zero."""
    lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
    rows: Matrix = (matrix / np.maximum(lengths, 1e-12)).astype(np.float32)
    return rows


def centroids(vectors: Matrix, homes: Numbers) -> tuple[Numbers, Matrix, Numbers]:
    """Return clusters (k,) ascending, the sums of their episodes' rows (k, dim), and how many there are (k,)."""
    if len(homes) == 0:
        return np.zeros(0, dtype=np.int64), np.zeros((0, vectors.shape[1]), dtype=np.float32), np.zeros(0, np.int64)
    order = np.argsort(homes, kind="stable")
    numbers, starts, counts = np.unique(homes[order], return_index=True, return_counts=True)
    sums: Matrix = np.add.reduceat(vectors[order], starts, axis=0)
    return numbers, sums, counts.astype(np.int64)


def by_home(homes: Numbers) -> dict[int, Numbers]:
    """Return the rows of each cluster, ascending; clusters ascending too."""
    order = np.argsort(homes, kind="stable")
    numbers, starts = np.unique(homes[order], return_index=True)
    parts = np.split(order, starts[1:]) if len(numbers) else []
    return {int(number): part for number, part in zip(numbers, parts, strict=True)}


def fit(layout: Layout, homes: Numbers, rows: Numbers) -> Fit:
    """Return how the episodes of some rows fit the clusters that `homes` (e,) put all episodes in."""
    numbers, sums, counts = centroids(layout.vectors, homes)
    heads = unit_rows(sums)
    own = np.full(len(rows), np.nan)
    other = np.zeros(len(rows))
    nearest = np.zeros(len(rows), dtype=np.int64)
    for start in range(0, len(rows), _ROWS):
        part = slice(start, start + _ROWS)
        some = rows[part]
        vectors = layout.vectors[some]
        at = np.searchsorted(numbers, homes[some])
        # Without itself: a small cluster's mean is near each of its members because it is made of them.
        rest = unit_rows(sums[at] - vectors)
        own[part] = np.where(counts[at] > 1, np.einsum("ij,ij->i", rest, vectors), np.nan)
        scores = vectors @ heads.T
        scores[np.arange(len(some)), at] = -np.inf
        if len(numbers) > 1:
            best = np.argmax(scores, axis=1)
            other[part] = scores[np.arange(len(some)), best]
            nearest[part] = numbers[best]
    return Fit(own, other, nearest)
