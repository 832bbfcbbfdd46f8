"""Keeps health true while the server runs: MemoryService serves unless nothing can be stored or embedded at all.

A full disk is not noticed to be free again by itself, because clients that heed health write nothing meanwhile: so
the catalog is probed. An index or an SLM that is away leaves the service serving; `GetServerInfo` and `GetStats`
say so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog

from clag_server.api.health import HealthServicer
from clag_server.models.api import EngineState, EngineStatus
from clag_server.types.errors import StorageFailed

__all__ = ["Readiness", "Writable"]

CHECK_S: Final = 1.0
"""Seconds between two looks, and between two probes of a catalog that cannot write."""

_log = structlog.get_logger("clag.server")


class Writable(Protocol):
    """The part of a catalog that says whether it can write (see `catalog.api.Catalog`)."""

    @property
    def write_failure(self) -> str:
        """Why the last write failed, "" when it did not."""

    async def probe_write(self) -> None:
        """Try a write; raises StorageFailed."""


class Readiness:
    """Watches what MemoryService cannot do without.

    Args:
        health: Where it is said.
        services: Names of the health service that stand and fall with it.
        catalog: Must be able to write.
        embedder: Asks for the embedder's state.
    """

    def __init__(
        self,
        health: HealthServicer,
        services: Sequence[str],
        *,
        catalog: Writable,
        embedder: Callable[[], EngineStatus],
    ) -> None:
        self._health = health
        self._services = services
        self._catalog = catalog
        self._embedder = embedder
        self._told = ""

    async def run(self) -> None:
        """Check for ever; health is as it should be after each check."""
        while True:
            await self.check()
            await asyncio.sleep(CHECK_S)

    async def check(self) -> None:
        """Look once, and set health by it."""
        reason = await self._reason()
        for service in self._services:
            self._health.set(service, serving=not reason)
        if reason != self._told:
            if reason:
                _log.error("not serving", reason=reason)
            else:
                _log.info("serving again", after=self._told)
            self._told = reason

    async def _reason(self) -> str:
        """Why memories cannot be served, "" when they can."""
        if self._catalog.write_failure:
            try:
                await self._catalog.probe_write()
            except StorageFailed as failed:
                return str(failed)
        status = self._embedder()
        return f"no embedder: {status.reason}" if status.state is EngineState.ABSENT else ""
