"""Who may send a request now: a bound on requests in flight, with the urgent ones first.

Some places are kept for INTERACTIVE callers, so that a question does not wait for a bulk request to end; the server
behind batches what arrives, and would not know who is waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING

from clag_server.models.api import ModelUnavailableError, Priority

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["PriorityGate"]


class PriorityGate:
    """A semaphore with one line a priority.

    Args:
        places: Requests in flight at once, at least 1.
        max_waiting: Longest total line.
    """

    def __init__(self, places: int, max_waiting: int) -> None:
        self._places = places
        # One in eight, but never the only place: bulk work must go on.
        self._reserved = max(places // 8, 1) if places > 1 else 0
        self._max_waiting = max_waiting
        self._busy = 0
        self._lines: dict[Priority, deque[asyncio.Future[None]]] = {one: deque() for one in Priority}

    @property
    def waiting(self) -> int:
        """Callers in all lines."""
        return sum(self.waiting_by_priority().values())

    def waiting_by_priority(self) -> dict[str, int]:
        """Callers in each line, by the priority's name in lower case."""
        return {one.name.lower(): sum(not turn.done() for turn in line) for one, line in self._lines.items()}

    @property
    def in_flight(self) -> int:
        """Places taken."""
        return self._busy

    def fail_waiting(self, error: ModelUnavailableError) -> None:
        """Send everybody in the lines away."""
        for line in self._lines.values():
            while line:
                turn = line.popleft()
                if not turn.done():
                    turn.set_exception(error)

    @contextlib.asynccontextmanager
    async def place(self, priority: Priority) -> AsyncIterator[float]:
        """Wait for a place and hold it; yields the seconds waited.

        Raises:
            ModelUnavailableError: The lines are full.
        """
        asked_at_s = time.monotonic()
        await self._enter(priority)
        try:
            yield time.monotonic() - asked_at_s
        finally:
            self._busy -= 1
            self._admit()

    async def _enter(self, priority: Priority) -> None:
        if self.waiting >= self._max_waiting:
            raise ModelUnavailableError(f"{self._max_waiting} calls already wait for the model server", 1.0)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines[priority].append(turn)
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled() or not turn.done():
                with contextlib.suppress(ValueError):  # `_admit` may have dropped it
                    self._lines[priority].remove(turn)
            elif turn.exception() is None:
                # The place was given at the moment in which the caller left: it goes to the next one.
                self._busy -= 1
                self._admit()
            raise

    def _admit(self) -> None:
        """Give free places away, in the order of the priorities."""
        for priority, line in self._lines.items():
            limit = self._places - (0 if priority is Priority.INTERACTIVE else self._reserved)
            while line and self._busy < limit:
                turn = line.popleft()
                if not turn.done():
                    self._busy += 1
                    turn.set_result(None)
