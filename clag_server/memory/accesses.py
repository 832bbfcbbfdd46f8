"""Which memories answers returned, counted behind the answers: many of them in one transaction, best effort."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog

from clag_server.types.errors import ClagError

_log = structlog.get_logger(__name__)

_PAUSE_S: Final = 1.0
_MOST: Final = 10_000
"""Accesses that are kept until they are written; further ones are not counted."""


class Touches(Protocol):
    """Where accesses are written; the catalog."""

    async def touch(self, ns: int, keys: Sequence[int], *, now_ns: int) -> None:
        """Count an access for each key; a key may be there several times."""


class AccessCounts:
    """Counts accesses, once in `pause_s` at most: a commit for each answer would wait for the disk each time.

    Args:
        catalog: Where they are written.
        now_ns: The wall clock.
        pause_s: What a crash may lose, in seconds.
    """

    def __init__(self, catalog: Touches, *, now_ns: Callable[[], int], pause_s: float = _PAUSE_S) -> None:
        self._catalog = catalog
        self._now_ns = now_ns
        self._pause_s = pause_s
        self._waiting: dict[int, list[int]] = {}
        self._writing: asyncio.Task[None] | None = None

    def add(self, ns: int, keys: Sequence[int]) -> None:
        """Count an access for each of the memories."""
        if not keys or sum(map(len, self._waiting.values())) + len(keys) > _MOST:
            return
        self._waiting.setdefault(ns, []).extend(keys)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_soon(), name="count accesses")

    async def stop(self) -> None:
        """Write what is left."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
        await self._write()

    async def _write_soon(self) -> None:
        while self._waiting:
            await asyncio.sleep(self._pause_s)
            await self._write()

    async def _write(self) -> None:
        while self._waiting:
            ns, keys = self._waiting.popitem()
            try:
                await self._catalog.touch(ns, keys, now_ns=self._now_ns())
            except ClagError as error:
                _log.warning("accesses not counted", ns=ns, memories=len(keys), reason=str(error))
