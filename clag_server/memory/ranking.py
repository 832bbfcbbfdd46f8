"""Stage two: rank the memories of the picked episodes and of the safety net (design, section 6.3).

h = half dense, half BM25, min-max scaled over the candidates; a memory gains from its neighbours in its episode,
from the best memory of the episode, and where the question names its speaker. Ties are broken by arrival.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clag_server.catalog.api import EpisodeMembers
from clag_server.memory.config import RetrieveConfig
from clag_server.memory.selecting import min_max
from clag_server.types.memory import Vector


@dataclass(frozen=True, slots=True)
class Ranked:
    """Candidates best first, aligned: keys, episodes, scores and what they are made of."""

    keys: NDArray[np.int64]
    episodes: NDArray[np.int64]
    scores: NDArray[np.float64]
    dense: NDArray[np.float64]
    lexical: NDArray[np.float64]
    neighbours: NDArray[np.float64]
    episode_best: NDArray[np.float64]
    bonus: NDArray[np.float64]
    spoken: NDArray[np.float64]


def rank(
    members: EpisodeMembers,
    query: Vector,
    lexical: NDArray[np.float64],
    config: RetrieveConfig,
    *,
    use_episodes: bool = True,
    bonus: NDArray[np.float64] | None = None,
    spoken: NDArray[np.float64] | None = None,
) -> Ranked:
    """Rank candidates.

    Args:
        members: Candidates (n), each key once, in any order.
        query: The query's unit vector (dim,).
        lexical: BM25 of each candidate (n,), zero where no word matches.
        config: Weights.
        use_episodes: False leaves out the episode terms: plain hybrid search, for comparison.
        bonus: What the SLM's choice adds to each candidate's score (n,); None for nothing.
        spoken: What its speaker adds (n,); None for nothing.
    """
    n = len(members.keys)
    if n == 0:
        empty = np.zeros(0, dtype=np.float64)
        return Ranked(members.keys, members.episodes, empty, empty, empty, empty, empty, empty, empty)
    cosines = (members.vectors @ query).astype(np.float64)
    weight = config.dense_weight if lexical.any() else 1.0
    h = weight * min_max(cosines) + (1 - weight) * min_max(lexical)
    neighbours, best = np.zeros(n), np.zeros(n)
    if use_episodes:
        neighbours, best = _episode_terms(members, h)
    bonus = np.zeros(n) if bonus is None else bonus
    spoken = np.zeros(n) if spoken is None else spoken
    scores = h + config.neighbour_weight * neighbours + config.episode_weight * best + bonus + spoken
    order = np.lexsort((members.keys, -scores))
    return Ranked(
        members.keys[order],
        members.episodes[order],
        scores[order],
        cosines[order],
        lexical[order],
        neighbours[order],
        best[order],
        bonus[order],
        spoken[order],
    )


def _episode_terms(
    members: EpisodeMembers, h: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (h of the previous plus h of the next in the episode, best h of the episode) for each candidate.

    A neighbour that is not a candidate counts as the lowest h of all candidates.
    """
    n = len(h)
    low = float(h.min())
    order = np.lexsort((members.positions, members.episodes))
    episodes, positions, sorted_h = members.episodes[order], members.positions[order], h[order]
    adjacent = (episodes[1:] == episodes[:-1]) & (positions[1:] - positions[:-1] == 1)
    previous = np.full(n, low)
    following = np.full(n, low)
    previous[1:][adjacent] = sorted_h[:-1][adjacent]
    following[:-1][adjacent] = sorted_h[1:][adjacent]
    _, inverse = np.unique(episodes, return_inverse=True)
    best_of = np.full(int(inverse.max()) + 1, -np.inf)
    np.maximum.at(best_of, inverse, sorted_h)
    neighbours, best = np.empty(n), np.empty(n)
    neighbours[order] = previous + following
    best[order] = best_of[inverse]
    return neighbours, best
