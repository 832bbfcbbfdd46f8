"""A queue that turns single calls into batches: by priority, by a budget, without callers that left.

Callers await an answer and never see how it was batched; the backend sees only batches (STYLE.md).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from clag_server.models.api import ModelError, ModelTimeoutError, Priority

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["BatchQueue", "Pending", "answer_within"]

Q = TypeVar("Q")
A = TypeVar("A")

_WINDOW = 512
"""Calls of one priority that are sorted by size together: enough for batches with little padding, few enough
that the first in is not overtaken for long."""

BULK_WAITS_S = 10.0
"""Bulk calls are served as if they had come this much later, so that a steady stream cannot starve them."""


@dataclass(eq=False, slots=True)
class Pending(Generic[Q, A]):
    """One call that waits for its batch."""

    question: Q
    size: int
    """Cost in the units of the budget (estimated tokens)."""
    priority: Priority
    deadline_at_s: float | None
    """On the clock of `time.monotonic`."""
    answer: asyncio.Future[A]
    queued_at_s: float = field(default_factory=time.monotonic)
    begun: bool = False
    """Whether the caller has a part of the answer: it cannot be asked again."""
    ends: int = 0
    """Workers that ended with it in hand."""
    suspected: int = 0
    """Those that ended in a pass which it shared: from then on it goes alone, so that the next end is a proof."""

    @property
    def alone(self) -> bool:
        """Whether it must have a batch of its own."""
        return self.suspected > 0

    @property
    def wanted(self) -> bool:
        """Whether somebody still waits."""
        return not self.answer.done()

    def resolve(self, answer: A) -> None:
        """Give the caller its answer; does nothing when it left."""
        if self.wanted:
            self.answer.set_result(answer)

    def fail(self, error: ModelError) -> None:
        """Give the caller an error; does nothing when it left."""
        if self.wanted:
            self.answer.set_exception(error)


class BatchQueue(Generic[Q, A]):
    """Calls that wait, one line a priority.

    Args:
        budget: Largest padded size of a batch: calls times the largest call.
        max_calls: Largest number of calls in a batch.
        clock: Seconds; replaced by tests of fairness.
    """

    def __init__(self, budget: int, max_calls: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.budget = budget
        self._max_calls = max_calls
        self._lines: dict[Priority, deque[Pending[Q, A]]] = {one: deque() for one in Priority}
        self._sorted: dict[Priority, deque[Pending[Q, A]]] = {one: deque() for one in Priority}
        self._clock = clock

    def __len__(self) -> int:
        return sum(map(len, self._lines.values())) + sum(map(len, self._sorted.values()))

    def put(self, call: Pending[Q, A]) -> None:
        """Add a call at the end of its priority's line."""
        self._lines[call.priority].append(call)

    def put_back(self, calls: list[Pending[Q, A]]) -> None:
        """Add calls again that were taken before: at the beginning of their lines, suspects at the end."""
        for call in reversed([one for one in calls if not one.alone]):
            self._lines[call.priority].appendleft(call)
        for call in calls:
            if call.alone:
                self.put(call)

    def take(self, least: Priority) -> list[Pending[Q, A]]:
        """Take the next batch of the most urgent priority that has calls; bulk calls age.

        Calls whose caller left or whose deadline passed are dropped on the way, the latter with an error.

        Args:
            least: Priorities after this one are not considered.

        Returns:
            Calls of one priority and similar size; empty when there are none.
        """
        for priority in self._order():
            if priority > least:
                continue
            batch = self._take_from(priority)
            if batch:
                return batch
        return []

    def waiting(self) -> dict[str, int]:
        """Return how many calls wait, by priority."""
        return {one.name.lower(): len(self._lines[one]) + len(self._sorted[one]) for one in Priority}

    def _order(self) -> tuple[Priority, ...]:
        bulk, organize = self._oldest_s(Priority.BULK), self._oldest_s(Priority.ORGANIZE)
        if bulk is not None and organize is not None and bulk + BULK_WAITS_S < organize:
            return (Priority.INTERACTIVE, Priority.BULK, Priority.ORGANIZE)
        return tuple(Priority)

    def _oldest_s(self, priority: Priority) -> float | None:
        line = self._sorted[priority] or self._lines[priority]
        return line[0].queued_at_s if line else None

    def fail_all(self, error: ModelError) -> None:
        """Fail every waiting call."""
        for line in (*self._lines.values(), *self._sorted.values()):
            while line:
                line.popleft().fail(error)

    def _take_from(self, priority: Priority) -> list[Pending[Q, A]]:
        ready = self._sorted[priority]
        batch: list[Pending[Q, A]] = []
        largest = 0
        now_s = self._clock()
        while len(batch) < self._max_calls:
            if not ready and not self._refill(priority):
                break
            call = ready[0]
            largest = max(largest, call.size)
            alone = call.alone or (bool(batch) and batch[0].alone)
            if batch and (alone or (len(batch) + 1) * largest > self.budget):
                break
            ready.popleft()
            if call.deadline_at_s is not None and call.deadline_at_s <= now_s:
                call.fail(ModelTimeoutError(call.deadline_at_s - call.queued_at_s))
            elif call.wanted:
                batch.append(call)
        return batch

    def _refill(self, priority: Priority) -> bool:
        line = self._lines[priority]
        window = [line.popleft() for _ in range(min(_WINDOW, len(line)))]
        window.sort(key=lambda call: call.size)
        self._sorted[priority].extend(window)
        return bool(window)


async def answer_within(answer: Awaitable[A], deadline_s: float | None) -> A:
    """Await an answer for at most `deadline_s` seconds.

    Raises:
        ModelTimeoutError: The time passed.
    """
    try:
        async with asyncio.timeout(deadline_s) as scope:
            return await answer
    except TimeoutError:
        if scope.expired() and deadline_s is not None:
            raise ModelTimeoutError(deadline_s) from None
        raise
