"""Embedding a namespace again for the server's embedder, while it keeps serving.

    gather: embed every placed memory at BULK priority into a shadow file; what is there serves by its words
    switch: pin, vectors and sums change in one transaction of the catalog; the index is made anew from it

The old vectors stay whole until the switch, so a kill leaves the old space or the new one. The index is dropped
before the switch and again after it: whatever moment a kill comes at, no index of old vectors is taken for one of
new ones. Memories that arrive meanwhile are stored, and embedded by the pipeline after the switch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import structlog

from clag_server.catalog.api import Catalog, EmbedderPin, Namespace
from clag_server.catalog.api_reembed import EmbedderSwitch
from clag_server.memory.episode_cache import EpisodeCache
from clag_server.memory.index_text import index_text
from clag_server.memory.operations import OperationRun
from clag_server.memory.registry import Models, NamespaceRegistry
from clag_server.memory.shadow import ShadowFile
from clag_server.models.api import (
    ModelRequestRefusedError,
    ModelTimeoutError,
    ModelUnavailableError,
    Priority,
    WrongShapeError,
)
from clag_server.types.errors import EmbedderNotServed, StorageFailed
from clag_server.types.memory import Memory, Vector
from clag_server.types.operation import JsonValue, Operation
from clag_server.vectors.api import VectorIndex

__all__ = ["Reembedding"]

_log = structlog.get_logger(__name__)

BATCH: Final = 64
"""Memories embedded in one call: bulk work holds the model for one such batch while a question waits."""

SYNC_ROWS: Final = 1024
"""Vectors after which progress is on disk; a kill costs at most so many."""

_SUFFIX: Final = ".vectors"
_HARMLESS: Final = "a note"


class Reembedding:
    """Runs REEMBED operations.

    Args:
        registry: The namespaces at work.
        catalog: The system of record.
        switch: The part of it that changes embedders.
        index: The vector index.
        cache: Vectors of recent episodes.
        models: The models.
        folder: Where shadow files are.
        now_ns: The wall clock.
    """

    def __init__(
        self,
        registry: NamespaceRegistry,
        *,
        catalog: Catalog,
        switch: EmbedderSwitch,
        index: VectorIndex,
        cache: EpisodeCache,
        models: Models,
        folder: Path,
        now_ns: Callable[[], int],
    ) -> None:
        self._registry = registry
        self._catalog = catalog
        self._switch = switch
        self._index = index
        self._cache = cache
        self._models = models
        self._folder = folder
        self._now_ns = now_ns

    async def run(self, run: OperationRun) -> Mapping[str, JsonValue]:
        """Embed a namespace again; goes on where an earlier run of the operation stopped."""
        name = run.operation.namespace
        self._registry.embed_again(name, running=True)
        try:
            pin = self._pin_of(run)
            await self._embed_again(run, await self._catalog.get_namespace(name), pin)
        except (StorageFailed, ModelUnavailableError, ModelTimeoutError):
            raise  # it is tried again, and the namespace serves as before until then
        except BaseException:
            self._registry.embed_again(name, running=False)
            await self._remove(run)
            raise
        self._registry.embed_again(name, running=False)
        pipeline = await self._registry.pipeline(name, create=False)  # takes up what was stored meanwhile
        await self._remove(run)
        await self._index.settle(pipeline.state.ns)
        placed = (await self._catalog.stats(pipeline.state.ns)).placed
        return {"memories": placed, "embedding_model": pin.name}

    async def clean(self, unfinished: Sequence[Operation]) -> None:
        """Remove shadow files of operations that ended."""
        kept = {self._path(operation) for operation in unfinished}
        found = await asyncio.to_thread(lambda: list(self._folder.glob(f"*{_SUFFIX}")))
        for path in found:
            if path not in kept:
                await asyncio.to_thread(path.unlink, missing_ok=True)

    def _pin_of(self, run: OperationRun) -> EmbedderPin:
        """Return the server's embedder. Raises EmbedderNotServed when it is not the one that was asked for."""
        pin = self._registry.pin()
        model, fingerprint = (str(run.operation.request[key]) for key in ("embedding_model", "fingerprint"))
        if pin.fingerprint != fingerprint:
            raise EmbedderNotServed(asked=model, configured=pin.name)
        return pin

    def _path(self, operation: Operation) -> Path:
        return self._folder / f"{operation.operation_id}{_SUFFIX}"

    async def _remove(self, run: OperationRun) -> None:
        """Delete the shadow file, unless the server stops and the operation goes on at the next start."""
        task = asyncio.current_task()
        if task is not None and task.cancelling() and not run.operation.cancel_asked:
            return
        await asyncio.to_thread(self._path(run.operation).unlink, missing_ok=True)

    async def _embed_again(self, run: OperationRun, namespace: Namespace, pin: EmbedderPin) -> None:
        if (namespace.embedder.fingerprint, namespace.embedder.dim) == (pin.fingerprint, pin.dim):
            await self._index.drop(namespace.ns)  # a kill came between the switch and the end of the operation
            return
        shadow = ShadowFile(self._path(run.operation), pin.dim)
        try:
            await self._gather(run, namespace, shadow)
            await self._change(run, namespace, pin, shadow)
        except OSError as error:
            raise StorageFailed(f"the new vectors of a namespace: {error}") from error
        finally:
            shadow.close()

    async def _gather(self, run: OperationRun, namespace: Namespace, shadow: ShadowFile) -> None:
        """Embed all placed memories into the shadow, behind those that are in it."""
        saved = run.operation.progress.get("rows", 0)
        await asyncio.to_thread(shadow.open, saved if isinstance(saved, int) else 0)
        total = (await self._catalog.stats(namespace.ns)).placed
        after, synced = shadow.last_key, shadow.rows
        while True:
            page = await self._catalog.list_memories(namespace.ns, where=None, after=after, limit=BATCH)
            keys, vectors = await self._embedded([m for m in page.memories if m.cluster is not None])
            if keys:
                await asyncio.to_thread(shadow.append, np.array(keys, dtype=np.int64), np.stack(vectors))
            progress: dict[str, JsonValue] | None = None
            if page.next_after is None or shadow.rows - synced >= SYNC_ROWS:
                synced = await asyncio.to_thread(shadow.sync)
                progress = {"rows": synced}
            await run.report(
                "embedding",
                done=shadow.rows,
                total=max(total, shadow.rows),
                progress=progress,
                durable=progress is not None,
            )
            if page.next_after is None:
                return
            after = page.next_after

    async def _change(self, run: OperationRun, namespace: Namespace, pin: EmbedderPin, shadow: ShadowFile) -> None:
        await run.report("switching", done=0, total=shadow.rows, durable=True)
        async with self._registry.closed(namespace.name):
            await self._index.drop(namespace.ns)
            count = await asyncio.shield(
                self._switch.switch_embedder(namespace.ns, pin, shadow.batches, now_ns=self._now_ns())
            )
            self._cache.drop(namespace.ns)
            await self._index.drop(namespace.ns)
        _log.info("namespace embedded again", namespace=namespace.name, memories=count, embedder=pin.name)

    async def _embedded(self, memories: Sequence[Memory]) -> tuple[list[int], list[Vector]]:
        """Return keys and vectors; a memory that the model refuses is left out."""
        if not memories:
            return [], []
        texts = await asyncio.to_thread(lambda: [index_text(memory) for memory in memories])
        embedder = self._models.embedder
        try:
            return [m.key for m in memories], list(await embedder.embed(texts, priority=Priority.BULK))
        except (ModelRequestRefusedError, WrongShapeError) as error:
            _log.warning("batch is embedded one by one", reason=str(error))
        found: dict[int, Vector] = {}
        for memory, text in zip(memories, texts, strict=True):
            try:
                found[memory.key] = (await embedder.embed([text], priority=Priority.BULK))[0]
            except (ModelRequestRefusedError, WrongShapeError):
                _log.warning("memory is left to the pipeline", memory_id=memory.memory_id)
        if not found:
            await self._ensure_works()
        return list(found), list(found.values())

    async def _ensure_works(self) -> None:
        """Raise ModelUnavailableError where the model embeds nothing at all: that is no memory's fault."""
        try:
            await self._models.embedder.embed([_HARMLESS], priority=Priority.BULK)
        except (ModelRequestRefusedError, WrongShapeError) as error:
            raise ModelUnavailableError(f"the embedder is out of order: {error}") from error
