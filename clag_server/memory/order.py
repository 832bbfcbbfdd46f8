"""Whether the order in which memories came says anything: only then do neighbours in time count in a score.

A stream of experience has one thing after the other, and what came just before or after good evidence is often
evidence too. A bulk of notes in any order has no such neighbours: there, what an episode lends to its members is
noise (LoCoMo with the arrival order shuffled: evidence recall@10 67.0 with it, 70.2 without). So it is measured, in
a sample of the namespace, how much more alike a memory and its successor are than two memories are otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from clag_server.catalog.api import Catalog
from clag_server.memory.config import RetrieveConfig
from clag_server.types.memory import Matrix

__all__ = ["OrderSignal", "told_by_order", "weighed_by_order"]

_NOTHING: Final = 0.02
"""Mean cosine with the successor above that of any two, up to which the order says nothing: chance alone reaches it
in a sample of this size."""
_CLEAR: Final = 0.06
"""From here on it counts in full. LoCoMo's conversations lie at 0.08 to 0.17, passages cut into sentences at 0.2 to
0.5, all of them in random order at -0.02 to 0.02."""

_RUNS: Final = 24
_LENGTH: Final = 24
"""Runs of arrivals that are sampled, and memories in each: some 550 pairs, whose mean chance moves by 0.01."""
_FEWEST: Final = 64
"""Pairs below which nothing can be told, and the order is believed."""
_GROWTH: Final = 1.5
"""Measured again when the namespace has grown, or shrunk, by this factor."""


def told_by_order(before: Matrix, after: Matrix) -> float:
    """Return how much the order says, 0 to 1.

    Args:
        before: Unit vectors of memories (n, dim).
        after: Unit vectors of those that came right after them (n, dim).
    """
    if len(before) < _FEWEST:
        return 1.0
    beside = float((before * after).sum(axis=1).mean())
    anyhow = float(before.mean(axis=0) @ after.mean(axis=0))
    return min(max((beside - anyhow - _NOTHING) / (_CLEAR - _NOTHING), 0.0), 1.0)


def weighed_by_order(config: RetrieveConfig, share: float) -> RetrieveConfig:
    """Return the weights where the order says so much, 0 to 1."""
    if share >= 1.0:
        return config
    return replace(
        config,
        neighbour_weight=config.neighbour_weight * share,
        episode_weight=config.episode_weight * share,
    )


class OrderSignal:
    """How much the order of arrival says in one namespace, measured now and then."""

    def __init__(self, catalog: Catalog, ns: int) -> None:
        self._catalog = catalog
        self._ns = ns
        self._share = 1.0
        self._measured_at = 0

    async def share(self, memories: int) -> float:
        """Return it, 0 to 1, for a namespace of so many memories.

        Raises:
            StorageFailed: the catalog cannot be read.
        """
        known = self._measured_at
        if not known or memories > known * _GROWTH or memories * _GROWTH < known:
            self._share = told_by_order(*await self._catalog.successors(self._ns, runs=_RUNS, length=_LENGTH))
            self._measured_at = max(memories, 1)
        return self._share
