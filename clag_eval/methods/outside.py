"""Systems outside (GAM, MemoryOS, mem0, ...): how they take part without a line of theirs in this project.

Write a module with a factory that returns an object of this form, and name it `MODULE:FACTORY` among the methods:

    class MySystem:
        name = "mine"

        async def reset(self) -> None: ...                        # forget everything; comes before each pool
        async def add(self, memory: clag_eval.data.Memory) -> None: ...   # one after the other, in order of arrival
        async def search(self, question: str, limit: int) -> list[str]: ...   # ids of memories, best first

Systems that rewrite memories have to keep the id of the memory that a text came from; where one of theirs came
from several, all of these ids count, in order. What is found is measured like the baselines: ranking, contexts
filled by rank.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, Protocol

from clag_eval.data import Memory, Question
from clag_eval.methods.base import EVERYTHING, Budgets, Found
from clag_eval.stored import EvaluationError, StoredPool
from clag_eval.tokens import fill

__all__ = ["Outside", "OutsideSystem"]

_ASKED_FOR: Final = 100


class OutsideSystem(Protocol):
    """What an adapter offers."""

    @property
    def name(self) -> str:
        """Its name in reports."""

    async def reset(self) -> None:
        """Forget everything."""

    async def add(self, memory: Memory) -> None:
        """Take the next memory."""

    async def search(self, question: str, limit: int) -> Sequence[str]:
        """Return ids of memories, best first."""


class Outside:
    """A system outside as a method.

    Args:
        system: The adapter's object.
        budgets: Token budgets of contexts.
    """

    def __init__(self, system: OutsideSystem, budgets: Budgets) -> None:
        self.name = system.name
        self._system = system
        self._budgets = budgets

    async def prepare(self, stored: StoredPool) -> None:
        """Give it the pool."""
        await self._system.reset()
        for memory in stored.pool.memories:
            await self._system.add(memory)

    async def find(self, stored: StoredPool, question: Question) -> Found:
        """Ask it.

        Raises:
            EvaluationError: It names a memory that the pool does not have.
        """
        started = time.perf_counter()
        names = await self._system.search(question.text, _ASKED_FOR)
        seconds = time.perf_counter() - started
        ranked = list(dict.fromkeys(names))
        unknown = [name for name in ranked if name not in stored.by_id]
        if unknown:
            raise EvaluationError(f"{self.name} found {unknown[0]!r}, which is no memory of {stored.pool.name}")
        memories = [stored.by_id[name] for name in ranked]
        filled = {budget: fill(memories, budget, stored.estimate) for budget in self._budgets.all}
        return Found(
            ranked=tuple(ranked),
            space=EVERYTHING,
            contexts={budget: ids for budget, (ids, _) in filled.items()},
            tokens={budget: tokens for budget, (_, tokens) in filled.items()},
            seconds=seconds,
        )
