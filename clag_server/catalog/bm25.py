"""BM25 of the memories that hold a query's tokens (Robertson and Zaragoza 2009).

FTS5 has a `bm25()` of its own with fixed constants (k1 1.2, b 0.75). Memories are short: a longer one is no worse a
match, and a repeated word says little. The constants here, the defaults of Anserini's baselines, find more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

K1: Final = 0.9
"""How much repetition of a word counts: it adds up to 1 + k1 times the word's weight."""

B: Final = 0.4
"""How much a long text has to hold more of a word than a short one: 0 not at all, 1 in proportion."""

_LEAST_IDF: Final = 1e-6
"""Weight of a word that half of the memories hold, or more: it still tells them from the rest."""


@dataclass(frozen=True, slots=True)
class Postings:
    """The memories that hold one token: keys (n,) ascending, how often each holds it, how many tokens each has."""

    keys: NDArray[np.int64]
    counts: NDArray[np.float64]
    lengths: NDArray[np.float64]


def postings_of(keys: NDArray[np.int64], lengths: NDArray[np.float64]) -> Postings:
    """Gather postings from one row an occurrence, rows of a memory being the same."""
    found, first, counts = np.unique(keys, return_index=True, return_counts=True)
    return Postings(found, counts.astype(np.float64), lengths[first])


def scored(
    tokens: Sequence[Postings], *, memories: int, mean_length: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the keys of all holders (n,), ascending, and their scores (n,), each above zero.

    Args:
        tokens: Postings of each token of the query.
        memories: How many memories are indexed.
        mean_length: Tokens of a memory in the mean, above zero.
    """
    held = [one for one in tokens if len(one.keys)]
    if not held:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float64)
    keys, where = np.unique(np.concatenate([one.keys for one in held]), return_inverse=True)
    weights = np.concatenate([_weights(one, memories, mean_length) for one in held])
    return keys, np.bincount(where, weights=weights, minlength=len(keys)).astype(np.float64)


def _weights(token: Postings, memories: int, mean_length: float) -> NDArray[np.float64]:
    holders = len(token.keys)
    idf = max(math.log((max(memories - holders, 0) + 0.5) / (holders + 0.5)), _LEAST_IDF)
    damped: NDArray[np.float64] = K1 * (1 - B + B * token.lengths / mean_length)
    weights: NDArray[np.float64] = idf * token.counts * (K1 + 1) / (token.counts + damped)
    return weights
