"""Splitting a cluster that grew too large: spherical 2-means over unit vectors, deterministic."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clag_server.types.memory import Matrix

_ROUNDS = 25


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
