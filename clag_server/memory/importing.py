"""Imports: rows of an export, or of another store, become memories of a namespace.

A stream of rows is an ingest stream whose items are rows: the same session, window and watermark. What is special
stands here: settings of a new namespace, index tokens of memories that are placed at once, and the mirror of
clusters and episodes that must follow what the catalog made of the rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from clag_server.catalog.api import Catalog, Namespace
from clag_server.memory.config import IngestConfig
from clag_server.memory.index_text import lexical_text
from clag_server.memory.ingest import StreamSession
from clag_server.memory.namespace import NamespaceState
from clag_server.memory.pipeline import NamespacePipeline
from clag_server.memory.progress import ProgressHub
from clag_server.memory.registry import NamespaceRegistry
from clag_server.types.cluster import Episode
from clag_server.types.ingest import AckLevel, AppendResult, Disposition, StreamPosition, StreamRef
from clag_server.types.transfer import (
    ImportedMemory,
    ImportedNamespace,
    ImportOptions,
    ImportResult,
    ImportRow,
    OnConflict,
)

_STREAM: Final = "import/"
"""Begins the names of import streams in the catalog; clients' names have no slash, so they never meet."""


class Imports:
    """Opens imports.

    Args:
        catalog: The system of record.
        registry: The namespaces at work.
        hub: Where progress is told.
        config: Bounds of streams.
        now_ns: The wall clock.
    """

    def __init__(
        self,
        catalog: Catalog,
        registry: NamespaceRegistry,
        hub: ProgressHub,
        config: IngestConfig,
        *,
        now_ns: Callable[[], int],
    ) -> None:
        self._catalog = catalog
        self._registry = registry
        self._hub = hub
        self._config = config
        self._now_ns = now_ns

    async def open(self, namespace: str, stream_id: str, options: ImportOptions) -> StreamSession[ImportRow]:
        """Open or resume an import; the namespace is created where settings allow.

        Raises NotFound, NamespaceDeleted, EmbedderMismatch, ModelUnavailableError (no embedder is known yet).
        """
        pipeline = await self._registry.pipeline(namespace, create=True)
        position = await self._catalog.open_stream(pipeline.state.ns, _STREAM + stream_id)
        store = _ImportStore(pipeline, options, self._registry.renewed)
        return StreamSession(
            namespace=pipeline.state.namespace,
            position=position,
            level=AckLevel.DURABLE,
            window_items=self._config.window_items,
            catalog=store,
            hub=self._hub,
            on_stored=lambda _keys: None,  # the store has told the pipeline what waits
            on_finish=lambda _sessions: pipeline.end_sessions(frozenset(store.sessions)),
            now_ns=self._now_ns,
            deleted=pipeline.deleted,
        )

    def same_space(self, model: str, dimension: int) -> bool:
        """Whether embeddings of a model are of this server's space, as far as its name tells."""
        pin = self._registry.pin()
        return bool(model) and (model, dimension) == (pin.name, pin.dim)


class _ImportStore:
    """Stands before the catalog for one import stream."""

    def __init__(
        self, pipeline: NamespacePipeline, options: ImportOptions, renewed: Callable[[Namespace], None]
    ) -> None:
        self._pipeline = pipeline
        self._options = options
        self._renewed = renewed
        self.sessions: set[str] = set()

    async def append(
        self, ns: int, items: Sequence[ImportRow], *, first_seq: int, stream: StreamRef | None, now_ns: int
    ) -> AppendResult:
        """Store rows and let the mirror follow."""
        if stream is None:
            raise ValueError("rows are imported through a stream")
        for row in items:
            if isinstance(row, ImportedNamespace):
                await self._take_settings(row, now_ns)
        rows = await asyncio.to_thread(self._with_tokens, items)
        self.sessions.update(row.memory.session_id for row in rows if isinstance(row, ImportedMemory))
        state = self._pipeline.state
        async with state.editing():
            result = await state.catalog.import_rows(
                ns, rows, first_seq=first_seq, stream=stream, options=self._options, now_ns=now_ns
            )
            await self._follow(result)
            if state.edited is not None and self._options.on_conflict is OnConflict.REPLACE:
                stored = (item.key for item in result.items if item.disposition is Disposition.CREATED)
                state.edited.update({key: result.revision for key in stored if key is not None})
        self._pipeline.stored(result.waiting)
        self._pipeline.edited()
        return AppendResult(result.items, result.revision)

    async def finish_stream(self, ns: int, ref: StreamRef, *, last_seq: int) -> StreamPosition:
        """Check the end; clusters get their representatives, and go when nobody came into them."""
        state = self._pipeline.state

        async def finish() -> StreamPosition:
            async with state.editing():
                position, result = await state.catalog.finish_import(
                    ns, ref, last_seq=last_seq, now_ns=state.now_ns()
                )
                await self._follow(result)
            self._pipeline.edited()
            return position

        return await asyncio.shield(asyncio.create_task(finish()))

    async def _follow(self, result: ImportResult) -> None:
        """Read again what the catalog made; the lock is held."""
        state = self._pipeline.state
        await state.mirror(episodes=result.episodes, clusters=result.clusters)
        if result.episodes_through:
            _use_up(state, result.episodes_through)

    async def _take_settings(self, row: ImportedNamespace, now_ns: int) -> None:
        """Give a namespace that never had a memory, nor settings, those of the export."""
        state = self._pipeline.state
        known = await state.catalog.get_namespace(state.namespace.name)
        if known.revision or (await state.catalog.stats(state.ns)).created:
            return
        self._renewed(await state.catalog.update_namespace(state.ns, row.settings, etag="", now_ns=now_ns))

    def _with_tokens(self, items: Sequence[ImportRow]) -> list[ImportRow]:
        """Make index tokens for the memories that may be placed at once."""
        if not self._options.keep_organization:
            return list(items)
        return [
            replace(row, lexical=lexical_text(row.memory))
            if isinstance(row, ImportedMemory) and row.memory.embedding is not None
            else row
            for row in items
        ]


def _use_up(state: NamespaceState, number: int) -> None:
    """Keep the mirror from giving out episode numbers that the catalog gave out: it counts on from what it saw."""
    home = next(iter(state.map.clusters), None)
    if home is None or number in state.map.episodes:
        return
    nothing = np.zeros(state.dim, dtype=np.float32)
    state.map.put_episode(
        Episode(
            episode=number,
            session_id="",
            cluster=home,
            vector_sum=nothing,
            memory_count=0,
            first_position=0,
            last_position=0,
            open=False,
            last_time_ns=0,
        )
    )
    state.map.remove_episode(number)
