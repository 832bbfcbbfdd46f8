"""Deadlines: a call that is not a stream ends after its own deadline or the server's maximum, whichever is first.

Leaving the handler cancels what it waits for, so queues inside drop the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from clag_server.api.errors import DeadlinePassed
from clag_server.api.interceptors.guard import Call

__all__ = ["DeadlineGuard"]


class DeadlineGuard:
    """Ends calls that take too long.

    Args:
        unary_s: The server's maximum for calls that are not streams, in seconds.
    """

    def __init__(self, unary_s: float) -> None:
        self._unary_s = unary_s

    @asynccontextmanager
    async def around(self, call: Call) -> AsyncIterator[None]:
        """Raise DeadlinePassed into the handler's caller, and CancelledError into the handler."""
        remaining = call.context.time_remaining()
        limits = [] if remaining is None else [remaining]
        if not call.streaming:
            limits.append(self._unary_s)
        if not limits:
            yield
            return
        limit = min(limits)
        try:
            async with asyncio.timeout(limit) as scope:
                yield
        except TimeoutError:
            if scope.expired():
                raise DeadlinePassed(limit) from None
            raise
