"""The namespaces that are at work: opened on first use, resumed at the start, stopped at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from clag_server.catalog.api import Catalog, EmbedderPin, Namespace
from clag_server.memory.config import IngestConfig, OrganizeConfig
from clag_server.memory.namespace import NamespaceState
from clag_server.memory.pipeline import NamespacePipeline
from clag_server.memory.progress import ProgressHub
from clag_server.models.api import Embedder, ModelUnavailableError, SlmEngine, TokenCounter
from clag_server.types.errors import ClagError, Draining, NamespaceDeleted
from clag_server.vectors.api import VectorIndex

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
        now_ns: Callable[[], int],
    ) -> None:
        self._catalog = catalog
        self._index = index
        self._models = models
        self._ingest = ingest
        self._organize = organize
        self._hub = hub
        self._now_ns = now_ns
        self._pipelines: dict[str, NamespacePipeline] = {}
        self._leaving: set[str] = set()
        self._opening = asyncio.Lock()
        self._stopping = False

    async def resume(self) -> None:
        """Open the namespaces that have unfinished work."""
        unfinished = await self._catalog.backlog()
        for namespace in await self._catalog.list_namespaces():
            if any(unfinished.get(namespace.ns, {}).values()):
                await self._resume(namespace)

    async def stop(self) -> None:
        """Stop the pipelines; from now on calls are turned away."""
        self._stopping = True
        await asyncio.gather(*(pipeline.stop() for pipeline in self._pipelines.values()))

    def running(self) -> Sequence[NamespacePipeline]:
        """The pipelines that are open now."""
        return tuple(self._pipelines.values())

    async def pipeline(self, name: str, *, create: bool, check: bool = True) -> NamespacePipeline:
        """Return the namespace's running pipeline.

        Args:
            name: The namespace.
            create: Whether it is created where it is missing and settings allow that.
            check: Whether one whose vectors are of another embedder is refused.

        Raises:
            NotFound: there is no such namespace.
            NamespaceDeleted: it is being deleted.
            EmbedderMismatch: see `check`.
            Draining: the server stops.
        """
        if self._stopping:
            raise Draining
        if name in self._leaving:
            raise NamespaceDeleted(name)
        pipeline = self._pipelines.get(name)
        if pipeline is None:
            async with self._opening:
                if name in self._leaving:
                    raise NamespaceDeleted(name)
                pipeline = self._pipelines.get(name) or await self._open(name, create=create)
        if check:
            pipeline.state.check_embedder(self.pin())
        return pipeline

    async def close(self, name: str, *, leaving: bool = False) -> None:
        """Stop a namespace's pipeline and forget it; the next use opens it anew.

        `leaving` keeps it closed until `forget_leaving`: it is being deleted.
        """
        if leaving:
            self._leaving.add(name)
        async with self._opening:
            pipeline = self._pipelines.pop(name, None)
            if pipeline is not None:
                await pipeline.stop()

    def forget_leaving(self, name: str) -> None:
        """Say that a deleted namespace is gone: its name may be used again."""
        self._leaving.discard(name)

    def pin(self) -> EmbedderPin:
        """The embedding space of the configured embedder. Raises ModelUnavailableError while it is not known."""
        embedder = self._models.embedder
        return EmbedderPin(embedder.name, embedder.fingerprint, embedder.dim)

    async def _open(self, name: str, *, create: bool) -> NamespacePipeline:
        if create and self._ingest.auto_create_namespaces:
            namespace = await self._catalog.ensure_namespace(name, self.pin(), create=True)
        else:
            namespace = await self._catalog.get_namespace(name)
        state = NamespaceState(
            namespace, catalog=self._catalog, index=self._index, organize=self._organize, now_ns=self._now_ns
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
