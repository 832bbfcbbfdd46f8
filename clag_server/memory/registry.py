"""The namespaces that are at work: opened on first use, resumed at the start, stopped at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import structlog

from clag_server.catalog.api import Catalog, EmbedderPin, Namespace
from clag_server.memory.competence import Competence
from clag_server.memory.config import IngestConfig, OrganizeConfig
from clag_server.memory.named_locks import NamedLocks
from clag_server.memory.namespace import NamespaceState
from clag_server.memory.pipeline import NamespacePipeline
from clag_server.memory.progress import ProgressHub
from clag_server.models.api import Embedder, ModelUnavailableError, SlmEngine, TokenCounter
from clag_server.types.errors import ClagError, Draining, NamespaceDeleted, NamespaceLimit, StorageFailed
from clag_server.vectors.api import VectorIndex

_READERS_S = 30.0
"""Longest wait for questions that are being answered, in seconds, before a namespace is changed as a whole."""

_log = structlog.get_logger(__name__)


class Models(Protocol):
    """The models a memory system needs; there may be no SLM."""

    @property
    def embedder(self) -> Embedder:
        """Turns texts into vectors."""

    @property
    def slm(self) -> SlmEngine | None:
        """The small language model."""

    @property
    def token_counter(self) -> TokenCounter:
        """Counts tokens as the SLM does."""


class NamespaceRegistry:
    """Gives each use case the pipeline of its namespace.

    Args:
        catalog: The system of record, opened by the owner.
        index: The vector index, started by the owner.
        models: The models.
        ingest: How streams and the pipeline behave.
        organize: How memories are organized.
        hub: Where progress is told.
        competence: How far the SLM is trusted.
        now_ns: The wall clock.
    """

    def __init__(
        self,
        *,
        catalog: Catalog,
        index: VectorIndex,
        models: Models,
        ingest: IngestConfig,
        organize: OrganizeConfig,
        hub: ProgressHub,
        competence: Competence,
        now_ns: Callable[[], int],
    ) -> None:
        self._catalog = catalog
        self._index = index
        self._models = models
        self._ingest = ingest
        self._organize = organize
        self._hub = hub
        self._competence = competence
        self._now_ns = now_ns
        self._pipelines: dict[str, NamespacePipeline] = {}
        self._leaving: set[str] = set()
        self._again: set[str] = set()
        self._opening = NamedLocks()
        self._creating = asyncio.Lock()
        self._resuming: asyncio.Task[None] | None = None
        self._stopping = False
        competence.on_learned(self._trust_learned)

    def resume(self) -> None:
        """Open the namespaces that have unfinished work, one after the other, behind the door."""
        self._resuming = asyncio.create_task(self._resume_all(), name="resume namespaces")

    async def resumed(self) -> None:
        """Wait until those namespaces are open."""
        if self._resuming is not None:
            await asyncio.shield(self._resuming)

    async def _resume_all(self) -> None:
        try:
            unfinished = await self._catalog.backlog()
            undecided = await self._catalog.undecided_namespaces()
            namespaces = await self._catalog.list_namespaces()
        except StorageFailed as error:
            _log.error("namespaces not resumed; each is, with its first call", reason=str(error))
            return
        for namespace in namespaces:
            waits = any(unfinished.get(namespace.ns, {}).values()) or namespace.ns in undecided
            if waits and not namespace.deleting:
                await self._resume(namespace)

    async def stop(self) -> None:
        """Stop the pipelines; from now on calls are turned away."""
        self._stopping = True
        if self._resuming is not None:
            self._resuming.cancel()
            await asyncio.gather(self._resuming, return_exceptions=True)
        await asyncio.gather(*(pipeline.stop() for pipeline in self._pipelines.values()))

    def running(self) -> Sequence[NamespacePipeline]:
        """The pipelines that are open now."""
        return tuple(self._pipelines.values())

    def opened(self, name: str) -> NamespacePipeline | None:
        """The namespace's pipeline if it is open now."""
        return self._pipelines.get(name)

    async def pipeline(
        self, name: str, *, create: bool, check: bool = True, again: bool = False
    ) -> NamespacePipeline:
        """Return the namespace's running pipeline.

        Args:
            name: The namespace.
            create: Whether it is created where it is missing and settings allow that.
            check: Whether one whose vectors are of another embedder is refused.
            again: Whether it is let through all the same while it is embedded again for the server's embedder.

        Raises:
            NotFound: there is no such namespace.
            NamespaceDeleted: it is being deleted.
            EmbedderMismatch: see `check`.
            NamespaceLimit: it would be one too many.
            Draining: the server stops.
        """
        if self._stopping:
            raise Draining
        if name in self._leaving:
            raise NamespaceDeleted(name)
        pipeline = self._pipelines.get(name)
        if pipeline is None:
            async with self._opening.hold(name):
                if name in self._leaving:
                    raise NamespaceDeleted(name)
                pipeline = self._pipelines.get(name) or await self._open(name, create=create)
        if check and not (again and name in self._again):
            pipeline.state.check_embedder(self.pin())
        return pipeline

    async def close(self, name: str, *, leaving: bool = False) -> None:
        """Stop a namespace's pipeline and forget it; the next use opens it anew.

        `leaving` keeps it closed until `forget_leaving`: it is being deleted.
        """
        if leaving:
            self._leaving.add(name)
        async with self._opening.hold(name):
            await self._close(name, leaving=leaving)

    def forget_leaving(self, name: str) -> None:
        """Say that a deleted namespace is gone: its name may be used again."""
        self._leaving.discard(name)

    @asynccontextmanager
    async def closed(self, name: str) -> AsyncIterator[None]:
        """Keep a namespace closed while the block changes it as a whole; calls that need it wait meanwhile.

        Edits of its memories have ended then, and questions too, unless their readers are too slow.
        """
        async with self._opening.hold(name):
            pipeline = await self._close(name, leaving=False)
            if pipeline is None:
                yield
                return
            await pipeline.state.unread(_READERS_S)
            async with pipeline.state.lock:
                pipeline.state.retired = True
                yield

    def embed_again(self, name: str, *, running: bool) -> None:
        """Say that a namespace is (or no longer is) embedded again: it serves by words, and takes memories."""
        if running:
            self._again.add(name)
        else:
            self._again.discard(name)

    def is_embedded_again(self, name: str) -> bool:
        """Whether a namespace is being embedded again."""
        return name in self._again

    async def check_room(self, name: str) -> None:
        """Raise NamespaceLimit where a namespace of this name would be one too many; one that exists is not."""
        limit = self._ingest.max_namespaces
        if not limit:
            return
        known = await self._catalog.list_namespaces()
        if len(known) >= limit and all(namespace.name != name for namespace in known):
            raise NamespaceLimit(limit)

    def renewed(self, namespace: Namespace) -> None:
        """Say that a namespace has other settings."""
        pipeline = self._pipelines.get(namespace.name)
        if pipeline is not None:
            pipeline.state.namespace = namespace

    def pin(self) -> EmbedderPin:
        """The embedding space of the configured embedder. Raises ModelUnavailableError while it is not known."""
        embedder = self._models.embedder
        return EmbedderPin(embedder.name, embedder.fingerprint, embedder.dim)

    def _trust_learned(self) -> None:
        for pipeline in self._pipelines.values():
            pipeline.trust_learned()

    async def _close(self, name: str, *, leaving: bool) -> NamespacePipeline | None:
        pipeline = self._pipelines.pop(name, None)
        if pipeline is not None:
            if leaving:
                pipeline.deleted.set()
            await pipeline.stop()
        return pipeline

    async def _open(self, name: str, *, create: bool) -> NamespacePipeline:
        if create and self._ingest.auto_create_namespaces:
            async with self._creating:
                await self.check_room(name)
                namespace = await self._catalog.ensure_namespace(name, self.pin(), create=True)
        else:
            namespace = await self._catalog.get_namespace(name)
        if namespace.deleting:
            raise NamespaceDeleted(name)
        state = NamespaceState(
            namespace,
            catalog=self._catalog,
            index=self._index,
            organize=self._organize,
            now_ns=self._now_ns,
            competence=self._competence,
        )
        await state.load()
        pipeline = NamespacePipeline(
            state, embedder=self._models.embedder, slm=self._models.slm, hub=self._hub, config=self._ingest
        )
        pinned, mine = namespace.embedder, self.pin()
        if self._ingest.pipeline and (pinned.fingerprint, pinned.dim) == (mine.fingerprint, mine.dim):
            pipeline.start()
        self._pipelines[name] = pipeline
        return pipeline

    async def _resume(self, namespace: Namespace) -> None:
        try:
            await self.pipeline(namespace.name, create=False)
        except (ClagError, ModelUnavailableError) as error:
            _log.error("namespace not resumed", namespace=namespace.name, reason=str(error))
