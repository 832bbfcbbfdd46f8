"""What a method is: something that is given an organized pool and finds memories for questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
from clag.v1 import memory_service_pb2 as pb
from numpy.typing import NDArray

from clag_eval.data import Question
from clag_eval.stored import StoredPool
from clag_eval.tokens import fill

__all__ = ["Budgets", "Found", "Method", "SearchSpace", "found_by_score"]

_RANKED: Final = 200
"""Memories of a ranking that are tried for a context; more than fit into any."""


@dataclass(frozen=True, slots=True)
class Budgets:
    """Token budgets of contexts.

    Attributes:
        shown: Budgets in which evidence is looked for, ascending.
        answer: What answers are given from.
        window: What the method `full` may fill: the language model's whole window.
    """

    shown: tuple[int, ...] = (512, 1024, 2048)
    answer: int = 1024
    window: int = 8192

    @property
    def all(self) -> tuple[int, ...]:
        """Every budget that a context is made for, ascending."""
        return tuple(sorted({*self.shown, self.answer}))


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """How much of the pool was looked at, as shares of it: the picked episodes, their clusters, the safety net."""

    picked: float
    clusters: float
    net: float = 0.0


EVERYTHING: Final = SearchSpace(picked=1.0, clusters=1.0)


@dataclass(frozen=True, slots=True)
class Found:
    """What a method found for a question.

    Attributes:
        ranked: Ids, best first; at least ten where there are so many.
        space: How much was looked at.
        contexts: By budget, the ids in a context of at most so many tokens.
        tokens: By budget, the tokens of that context.
        seconds: From asking to having the ten best; None where nothing was asked that can be compared.
        selection: The product's stage one, where it has one.
    """

    ranked: tuple[str, ...]
    space: SearchSpace
    contexts: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    tokens: Mapping[int, int] = field(default_factory=dict)
    seconds: float | None = None
    selection: pb.ClusterSelection | None = None


class Method(Protocol):
    """A way to find memories.

    `prepare` comes once for each pool, before its first question; `find` comes for one question after the other.
    """

    @property
    def name(self) -> str:
        """Its name in reports."""

    async def prepare(self, stored: StoredPool) -> None:
        """Get ready for a pool."""

    async def find(self, stored: StoredPool, question: Question) -> Found:
        """Find the memories that answer a question."""


def found_by_score(
    stored: StoredPool, scores: NDArray[np.float64], budgets: Budgets, *, space: SearchSpace = EVERYTHING
) -> Found:
    """Rank memories by score (n,), higher first, ties by arrival; those of minus infinity are not found.

    Contexts are filled by rank, each memory with its date and speaker.
    """
    order = [int(row) for row in np.argsort(-scores, kind="stable")[:_RANKED] if np.isfinite(scores[row])]
    ranked = [stored.pool.memories[row] for row in order]
    filled = {budget: fill(ranked, budget, stored.estimate) for budget in budgets.all}
    return Found(
        ranked=tuple(memory.id for memory in ranked[:50]),
        space=space,
        contexts={budget: ids for budget, (ids, _) in filled.items()},
        tokens={budget: tokens for budget, (_, tokens) in filled.items()},
    )
