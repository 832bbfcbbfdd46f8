"""What leaves and enters a server as a whole: changes as they happen, histories, exports, imports."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from clag_server.catalog.api import Catalog
from clag_server.memory.change_tail import Log
from clag_server.memory.config import IngestConfig
from clag_server.memory.exporting import Exports
from clag_server.memory.feed_config import ExportConfig, WatchConfig
from clag_server.memory.importing import Imports
from clag_server.memory.progress import ProgressHub
from clag_server.memory.registry import NamespaceRegistry
from clag_server.memory.watching import Watching
from clag_server.types.change import HistoryPage


class FeedStore(Catalog, Log, Protocol):
    """A catalog whose commits can be listened to."""


class Feeds:
    """Start after the stores are open, stop before they close.

    Args:
        catalog: The system of record.
        registry: The namespaces at work.
        hub: Where progress is told.
        directory: Where snapshots of exports are kept.
        open_catalog: Makes a catalog, not yet open, of a snapshot's file.
        ingest: Bounds of streams.
        watch: How the change log is kept and told.
        export: Bounds of exports.
        now_ns: The wall clock.
    """

    def __init__(
        self,
        *,
        catalog: FeedStore,
        registry: NamespaceRegistry,
        hub: ProgressHub,
        directory: Path,
        open_catalog: Callable[[Path], Catalog],
        ingest: IngestConfig,
        watch: WatchConfig,
        export: ExportConfig,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._catalog = catalog
        self.watching = Watching(catalog, registry, watch, now_ns=now_ns)
        self.exports = Exports(catalog, directory, export, open_catalog=open_catalog)
        self.imports = Imports(catalog, registry, hub, ingest, now_ns=now_ns)

    async def start(self) -> None:
        """Begin what runs in the background."""
        await self.watching.start()
        await self.exports.start()

    async def stop(self) -> None:
        """End it."""
        await self.exports.stop()
        await self.watching.stop()

    async def history(self, namespace: str, memory_id: str, *, before: int | None, limit: int) -> HistoryPage:
        """Page through what happened to a memory, newest first. Raises NotFound."""
        known = await self._catalog.get_namespace(namespace)
        return await self._catalog.memory_history(known.ns, memory_id, before=before, limit=limit)
