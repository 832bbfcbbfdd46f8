"""The door: closed until the stores are open, and closed again while the server drains.

On the way down new calls are turned away with a retry hint, open streams are told, and the server waits for them.
Health checks and reflection pass at all times.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from clag_server.api.errors import Starting
from clag_server.api.interceptors.guard import Call
from clag_server.types.errors import Draining

__all__ = ["DrainGate"]


class DrainGate:
    """Knows whether the server is up or drains, and how many calls are open."""

    def __init__(self) -> None:
        self._up = False
        self._draining = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._open = 0

    @property
    def draining(self) -> bool:
        """Whether `drain` was called."""
        return self._draining.is_set()

    def open(self) -> None:
        """Let calls in from now on."""
        self._up = True

    def drain(self) -> None:
        """Turn new calls away from now on and tell open streams."""
        self._draining.set()

    async def drained(self) -> None:
        """Wait for `drain`: what open streams do."""
        await self._draining.wait()

    async def idle(self) -> None:
        """Wait until no call is open."""
        await self._idle.wait()

    @asynccontextmanager
    async def around(self, call: Call) -> AsyncIterator[None]:
        """Count the call, or raise Draining or Starting."""
        if call.infrastructure:
            yield
            return
        if self.draining:
            raise Draining
        if not self._up:
            raise Starting
        self._open += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._open -= 1
            if not self._open:
                self._idle.set()
