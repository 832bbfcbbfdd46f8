"""A checksum over sets of placements that can be kept up as placements come and go.

Each placement is mixed to 64 bits (the finaliser of SplitMix64, Steele et al., OOPSLA 2014) and the values are
summed modulo 2^64, so adding and removing commute and order does not matter.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

_MASK = 2**64 - 1
_SIGN = 2**63


def placements_digest(placement_ids: ArrayLike, clusters: ArrayLike) -> int:
    """Return the digest of placements (two aligned integer arrays), as a signed 64-bit integer; 0 for none."""
    ids = np.asarray(placement_ids, dtype=np.int64).view(np.uint64)
    homes = np.asarray(clusters, dtype=np.int64).view(np.uint64)
    mixed = _mix(ids ^ _mix(homes + np.uint64(0x9E3779B97F4A7C15)))
    return signed(int(np.add.reduce(mixed, dtype=np.uint64)))


def add(digest: int, other: int) -> int:
    """Return the digest of the union of two disjoint sets."""
    return signed((digest + other) & _MASK)


def subtract(digest: int, other: int) -> int:
    """Return the digest of a set without one of its subsets."""
    return signed((digest - other) & _MASK)


def signed(value: int) -> int:
    """Return a 64-bit pattern as the signed integer that databases store."""
    return value - 2**64 if value >= _SIGN else value


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))
