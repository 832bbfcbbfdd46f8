"""What leaves and enters a server as a whole: changes as they happen, histories."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from clag_server.memory.registry import NamespaceRegistry
from clag_server.memory.watching import WatchConfig, Watching, WatchStore
from clag_server.types.change import HistoryPage


class FeedStore(WatchStore, Protocol):
    """The part of a catalog that feeds need."""

    async def memory_history(self, ns: int, memory_id: str, *, before: int | None, limit: int) -> HistoryPage:
        """See `catalog.api_log.ChangeLog.memory_history`."""


class Feeds:
    """Start after the stores are open, stop before they close.

    Args:
        catalog: The system of record.
        registry: The namespaces at work.
        watch: How the change log is kept and told.
        now_ns: The wall clock.
    """

    def __init__(
        self,
        *,
        catalog: FeedStore,
        registry: NamespaceRegistry,
        watch: WatchConfig,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._catalog = catalog
        self.watching = Watching(catalog, registry, watch, now_ns=now_ns)

    async def start(self) -> None:
        """Begin what runs in the background."""
        await self.watching.start()

    async def stop(self) -> None:
        """End it."""
        await self.watching.stop()

    async def history(self, namespace: str, memory_id: str, *, before: int | None, limit: int) -> HistoryPage:
        """Page through what happened to a memory, newest first. Raises NotFound."""
        known = await self._catalog.get_namespace(namespace)
        return await self._catalog.memory_history(known.ns, memory_id, before=before, limit=limit)
