"""Memories whose time has come: not retrieved from that moment on, deleted by a sweep soon after.

Until the sweep deletes an expired memory it can be read by its id and listed, so that a client finds out what
became of it; a filter on the expire time tells it apart. Retrieval looks at the clock itself (`memory.hits`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

import structlog

from clag_server.catalog.api import Catalog
from clag_server.memory.editing import Editor
from clag_server.memory.registry import NamespaceRegistry
from clag_server.models.api import ModelUnavailableError
from clag_server.types.errors import ClagError

__all__ = ["ExpirySweep"]

_log = structlog.get_logger(__name__)

_MIN_PAUSE_S = 0.2
"""Shortest pause between two looks, for memories that expire one after the other."""


class ExpirySweep:
    """Deletes expired memories of all namespaces. `start` once, `stop` at the end.

    Args:
        registry: The namespaces at work.
        catalog: The system of record.
        editor: Deletes.
        pause_s: Longest time between two looks, in seconds.
        now_ns: The wall clock.
    """

    def __init__(
        self,
        registry: NamespaceRegistry,
        *,
        catalog: Catalog,
        editor: Editor,
        pause_s: float,
        now_ns: Callable[[], int],
    ) -> None:
        self._registry = registry
        self._catalog = catalog
        self._editor = editor
        self._pause_s = pause_s
        self._now_ns = now_ns
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start sweeping."""
        self._task = asyncio.create_task(self._sweep(), name="sweep expired memories")

    async def stop(self) -> None:
        """Stop sweeping; a batch that has begun is finished."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def once(self) -> float:
        """Delete what has expired; returns in how many seconds to look again."""
        now_ns = self._now_ns()
        due = {ns: time_ns for ns, time_ns in (await self._catalog.next_expiry()).items() if time_ns <= now_ns}
        if due:
            await self._delete(due)
        coming = [time_ns for time_ns in (await self._catalog.next_expiry()).values() if time_ns > now_ns]
        wait_s = (min(coming) - now_ns) / 1e9 if coming else self._pause_s
        return max(_MIN_PAUSE_S, min(wait_s, self._pause_s))

    async def _delete(self, due: Collection[int]) -> None:
        """Delete what has expired in some namespaces (numbers)."""
        names = {namespace.ns: namespace for namespace in await self._catalog.list_namespaces()}
        for ns in sorted(due):
            if ns not in names or names[ns].deleting:
                continue
            pipeline = await self._registry.pipeline(names[ns].name, create=False, check=False)
            deleted = await self._editor.delete_expired(pipeline)
            _log.info("expired memories deleted", namespace=names[ns].name, count=deleted)

    async def _sweep(self) -> None:
        while True:
            pause_s = self._pause_s
            try:
                pause_s = await self.once()
            except (ClagError, ModelUnavailableError) as error:
                _log.warning("sweep of expired memories waits", reason=str(error))
            except Exception:  # noqa: BLE001 - a fault in one sweep must not end all later ones
                _log.exception("sweep of expired memories failed")
            await asyncio.sleep(pause_s)
