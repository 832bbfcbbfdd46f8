"""Exact nearest vectors by brute force, and merging of ranked lists; the order is the same everywhere."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
from numpy.typing import NDArray

from clag_server.types.memory import Matrix, Vector
from clag_server.vectors.api import VectorHit

__all__ = ["merge", "nearest"]


def nearest(ids: NDArray[np.int64], vectors: Matrix, query: Vector, limit: int) -> list[VectorHit]:
    """Return the `limit` rows with the highest dot product, best first, ties by id.

    Args:
        ids: Placement ids, shape (n,).
        vectors: Unit vectors, shape (n, dim).
        query: Unit vector, shape (dim,).
        limit: Most hits, at least 1.
    """
    if ids.size == 0:
        return []
    scores = vectors @ query
    if ids.size > limit:
        # Everything that ties with the last place stays in, so that the cut is by id and not by chance.
        floor = np.partition(scores, ids.size - limit)[ids.size - limit]
        keep = scores >= floor
        ids, scores = ids[keep], scores[keep]
    order = np.lexsort((ids, -scores))[:limit]
    return [VectorHit(int(ids[row]), float(scores[row])) for row in order]


def merge(lists: Iterable[Iterable[VectorHit]], limit: int, *, without: Collection[int] = ()) -> list[VectorHit]:
    """Merge hits into one list, best first, ties by id; each id once, those in `without` left out."""
    scores: dict[int, float] = {}
    for hits in lists:
        for hit in hits:
            if hit.placement_id not in without:
                scores.setdefault(hit.placement_id, hit.score)
    ranked = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    return [VectorHit(placement_id, score) for placement_id, score in ranked[:limit]]
