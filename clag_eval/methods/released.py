"""`released`: the published algorithm's rules for clusters and selection, emulated without a language model.

Written from the published description, not from its code: single memories are what is routed; the first hundred
are gathered and parted into three clusters by k-means; a later one joins the nearest centroid where that is near
enough and founds a cluster else; centroids stay what they were when the cluster was founded; above 300 memories a
cluster is parted in two. A question is compared with the centroids; the nearest few are its candidates, of which
some are chosen; the ten memories of the chosen ones that are nearest to the question are found, nothing else.

Without a language model the choice among the candidates is their order. How many are chosen, and how near is near
enough, is not part of the description: `_CHOSEN` and `_NEAR_ENOUGH` were fitted on LoCoMo to what had been measured
there of the released rules (docs/evaluation.md), so that this method says nothing new about LoCoMo.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from clag_eval.data import Question
from clag_eval.methods.base import Budgets, Found, SearchSpace, found_by_score
from clag_eval.stored import StoredPool
from clag_eval.table import cosines

__all__ = ["Released", "grouped"]

_GATHERED: Final = 100
_PARTS: Final = 3
_NEAR_ENOUGH: Final = 0.60
_MOST: Final = 300
_CHOSEN: Final = 3


class Released:
    """Choice by centroid, cosine inside; no words, no net."""

    name = "released"

    def __init__(self, budgets: Budgets, *, chosen: int = _CHOSEN, near_enough: float = _NEAR_ENOUGH) -> None:
        self._budgets = budgets
        self._chosen = chosen
        self._near_enough = near_enough
        self._cluster_of: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._founders: list[NDArray[np.int64]] = []
        self._lengths: list[float] = []

    async def prepare(self, stored: StoredPool) -> None:
        """Group the pool."""
        self._cluster_of, self._founders = grouped(stored.vectors, near_enough=self._near_enough)
        self._lengths = [float(np.linalg.norm(stored.vectors[rows].mean(axis=0))) for rows in self._founders]

    async def find(self, stored: StoredPool, question: Question) -> Found:
        """Rank what is in the chosen clusters."""
        near = await cosines(stored, question.text)
        # A centroid is the mean of its founders, so that its cosine is the mean of theirs over its length.
        to_centroids = np.array(
            [near[rows].mean() / length for rows, length in zip(self._founders, self._lengths, strict=True)]
        )
        chosen = np.argsort(-to_centroids, kind="stable")[: self._chosen]
        inside = np.isin(self._cluster_of, chosen)
        share = float(inside.mean())
        space = SearchSpace(picked=share, clusters=share)
        return found_by_score(stored, np.where(inside, near, -np.inf), self._budgets, space=space)


def grouped(
    vectors: NDArray[np.float32], *, near_enough: float = _NEAR_ENOUGH
) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """Group unit vectors (n, dim) in order of arrival.

    Returns:
        The cluster of each, and for each cluster the rows that founded it, whose mean is its centroid for good.
    """
    first = vectors[:_GATHERED]
    parts = _k_means(first, min(_PARTS, len(first)))
    cluster_of = np.full(len(vectors), -1, dtype=np.int64)
    founders: list[NDArray[np.int64]] = []
    for part in np.unique(parts):
        rows = np.flatnonzero(parts == part)
        cluster_of[rows] = len(founders)
        founders.append(rows)
    centroids = [_unit(vectors[rows].mean(axis=0)) for rows in founders]
    for row in range(len(first), len(vectors)):
        near = np.array(centroids) @ vectors[row]
        best = int(near.argmax())
        if near[best] < near_enough:
            best = len(founders)
            founders.append(np.array([row]))
            centroids.append(vectors[row])
        cluster_of[row] = best
        members = np.flatnonzero(cluster_of == best)
        if len(members) > _MOST:
            halves = _k_means(vectors[members], 2)
            for half, cluster in ((0, best), (1, len(founders))):
                rows = members[halves == half]
                cluster_of[rows] = cluster
                if cluster == len(founders):
                    founders.append(rows)
                    centroids.append(_unit(vectors[rows].mean(axis=0)))
                else:
                    founders[cluster] = rows
                    centroids[cluster] = _unit(vectors[rows].mean(axis=0))
    return cluster_of, founders


def _k_means(vectors: NDArray[np.float32], parts: int) -> NDArray[np.int64]:
    """Part vectors (n, dim) by Lloyd's rounds from the vectors that are farthest from one another; (n,) labels."""
    if len(vectors) <= parts:
        return np.arange(len(vectors), dtype=np.int64)
    seeds = [0]
    for _ in range(parts - 1):
        seeds.append(int((vectors @ vectors[seeds].T).max(axis=1).argmin()))
    centers = vectors[seeds].copy()
    labels = np.zeros(len(vectors), dtype=np.int64)
    for _ in range(50):
        new = (vectors @ centers.T).argmax(axis=1)
        if (new == labels).all():
            break
        labels = new
        for part in range(parts):
            if (labels == part).any():
                centers[part] = _unit(vectors[labels == part].mean(axis=0))
    return labels


def _unit(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    return vector / max(float(np.linalg.norm(vector)), 1e-9)
