"""Parting clusters: spherical 2-means for one that grew too large, k-means for a cold start; both deterministic."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clag_server.types.memory import Matrix

_ROUNDS = 25
_SAME = 1e-5
"""Squared distance of unit vectors (float32) below which they are the same point."""
_STARTS = 8
"""Seeded beginnings of k-means, of which the tightest result counts."""


def parts_of(vectors: Matrix, parts: int) -> list[NDArray[np.int64]] | None:
    """Return the rows (n, dim) in `parts` groups by likeness, the largest first; None when they cannot be parted.

    Always parts the largest group that can be parted (bisecting k-means, Steinbach et al., 2000).
    """
    groups = [np.arange(len(vectors))]
    whole: list[NDArray[np.int64]] = []
    while len(groups) + len(whole) < parts:
        groups.sort(key=lambda group: (-len(group), int(group[0])))
        if not groups:
            return None
        group = groups.pop(0)
        leaving = two_means(vectors[group])
        if leaving is None:
            whole.append(group)
        else:
            groups += [group[~leaving], group[leaving]]
    return sorted([*groups, *whole], key=lambda group: (-len(group), int(group[0])))


def two_means(vectors: Matrix) -> NDArray[np.bool_] | None:
    """Return which of the unit rows (n, dim) form the smaller part, or None when they cannot be parted.

    Starts from the row farthest from the mean and the row farthest from that one, so that no seed is needed.
    """
    if len(vectors) < 2:
        return None
    first = int(np.argmin(vectors @ vectors.mean(axis=0)))
    second = int(np.argmin(vectors @ vectors[first]))
    if first == second or float(vectors[first] @ vectors[second]) > 1 - 1e-6:
        return None
    centers = vectors[[first, second]]
    part = np.zeros(len(vectors), dtype=np.bool_)
    for _ in range(_ROUNDS):
        scores = vectors @ centers.T
        new = scores[:, 1] > scores[:, 0]
        if new.all() or not new.any():
            return None
        if (new == part).all():
            break
        part = new
        sums = np.stack([vectors[~part].sum(axis=0), vectors[part].sum(axis=0)])
        centers = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
    return part if part.sum() * 2 <= len(part) else ~part


def k_means(vectors: Matrix, parts: int, *, seed: int = 0) -> NDArray[np.int64]:
    """Return the part (n,) of each row (n, dim), numbered from 0 without gaps; at most `parts`.

    Lloyd's algorithm from beginnings by k-means++ (Arthur and Vassilvitskii, 2007), the best of a few.
    """
    random = np.random.default_rng(seed)
    best: NDArray[np.int64] = np.zeros(len(vectors), dtype=np.int64)
    least = np.inf
    for _ in range(_STARTS):
        centers = _beginning(vectors, parts, random)
        labels = np.zeros(len(vectors), dtype=np.int64)
        for _ in range(_ROUNDS):
            labels = _distances(vectors, centers).argmin(axis=1)
            fresh = np.stack([vectors[labels == part].mean(axis=0) for part in np.unique(labels)])
            if fresh.shape == centers.shape and np.allclose(fresh, centers):
                break
            centers = fresh
        distances = _distances(vectors, centers)
        labels = distances.argmin(axis=1)
        spread = float(distances[np.arange(len(vectors)), labels].sum())
        if spread < least - 1e-9:
            least, best = spread, np.unique(labels, return_inverse=True)[1].astype(np.int64)
    return best


def _beginning(vectors: Matrix, parts: int, random: np.random.Generator) -> Matrix:
    """Choose up to `parts` distinct rows, each with a chance that grows with its distance from those before."""
    chosen = [int(random.integers(len(vectors)))]
    while len(chosen) < parts:
        nearest = _distances(vectors, vectors[chosen]).min(axis=1)
        nearest[nearest < _SAME] = 0.0
        if not nearest.any():
            break
        chosen.append(int(random.choice(len(vectors), p=nearest / nearest.sum())))
    return vectors[chosen]


def _distances(vectors: Matrix, centers: Matrix) -> NDArray[np.float64]:
    """Return the squared distances (n, parts) of rows (n, dim) and centers (parts, dim)."""
    # Not by differences: those would be n x parts x dim numbers.
    lengths = np.square(vectors, dtype=np.float64).sum(axis=1)[:, None]
    squares: NDArray[np.float64] = (
        lengths + np.square(centers, dtype=np.float64).sum(axis=1) - 2.0 * (vectors @ centers.T)
    )
    np.maximum(squares, 0.0, out=squares)
    return squares
