"""The memory system: namespaces, their pipelines, and every use case of `memory.service.MemoryService`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Protocol

import structlog

from clag_server.catalog.api import Catalog, MemoryPage, Namespace
from clag_server.catalog.api_log import OperationStore
from clag_server.catalog.api_reembed import EmbedderSwitch
from clag_server.memory.accesses import AccessCounts
from clag_server.memory.archiving import ArchiveSweep
from clag_server.memory.cluster_editing import ClusterEditing
from clag_server.memory.cluster_views import views
from clag_server.memory.competence import Competence
from clag_server.memory.config import IngestConfig, OrganizeConfig, RetrieveConfig
from clag_server.memory.counters import Outcome
from clag_server.memory.editing import Editor
from clag_server.memory.episode_cache import EpisodeCache
from clag_server.memory.expiry import ExpirySweep
from clag_server.memory.ingest import StreamSession
from clag_server.memory.namespaces import Namespaces
from clag_server.memory.operations import Operations
from clag_server.memory.probing.prober import ProbeConfig, Prober
from clag_server.memory.profiles import due
from clag_server.memory.progress import ProgressHub
from clag_server.memory.reembedding import Reembedding
from clag_server.memory.registry import Models, NamespaceRegistry
from clag_server.memory.reindexing import Reindexing
from clag_server.memory.reorganizing.service import Reorganizing
from clag_server.memory.reorganizing.triggers import ReorganizeTriggers
from clag_server.memory.retrieving import Retrieval, Tools
from clag_server.memory.scenes import Scenes
from clag_server.memory.service import ClusterView, Created, StoreStats, SystemStats
from clag_server.types.cluster import ClusterState
from clag_server.types.errors import FieldViolation, InvalidField, NamespaceDeleted, NotFound
from clag_server.types.filters import Filter
from clag_server.types.ingest import AckLevel, Disposition, IngestItem, IngestStages
from clag_server.types.memory import Memory, NewMemory
from clag_server.types.operation import OperationKind
from clag_server.types.retrieval import RetrieveQuery, RetrieveStage
from clag_server.vectors.api import VectorIndex

_log = structlog.get_logger(__name__)


class SystemCatalog(Catalog, OperationStore, EmbedderSwitch, Protocol):
    """All that a memory system needs of its catalog."""


class MemorySystem:
    """Implements `MemoryService` over a catalog, a vector index and models, which it opens and closes."""

    def __init__(
        self,
        *,
        catalog: SystemCatalog,
        index: VectorIndex,
        models: Models,
        data_dir: Path,
        ingest: IngestConfig,
        organize: OrganizeConfig,
        retrieve: RetrieveConfig,
        slm_identity: str | None = None,
        bytes_on_disk: Callable[[], int] = lambda: 0,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._catalog = catalog
        self._index = index
        self._models = models
        self._ingest = ingest
        self._retrieve = retrieve
        self._bytes_on_disk = bytes_on_disk
        self._now_ns = now_ns
        self._hub = ProgressHub()
        self._cache = EpisodeCache(catalog, max_bytes=retrieve.cache_mib << 20)
        self.competence = Competence(organize.trust, organize.choice)
        self._registry = NamespaceRegistry(
            catalog=catalog,
            index=index,
            models=models,
            ingest=ingest,
            organize=organize,
            hub=self._hub,
            competence=self.competence,
            now_ns=now_ns,
        )
        self._cluster_edits = ClusterEditing(self._registry, catalog=catalog, now_ns=now_ns)
        self._accesses = AccessCounts(catalog, now_ns=now_ns)
        self.edits = Editor(self._registry, catalog=catalog, hub=self._hub, cache=self._cache, now_ns=now_ns)
        self.operations = Operations(catalog, now_ns=now_ns)
        self.probing = Prober(
            models,
            operations=self.operations,
            competence=self.competence,
            folder=data_dir / "probe",
            config=ProbeConfig(slm_identity, organize.probe_auto, organize.link_cosine),
            now_ns=now_ns,
        )
        self.whole = Namespaces(
            self._registry,
            catalog=catalog,
            index=index,
            cache=self._cache,
            operations=self.operations,
            now_ns=now_ns,
        )
        self._reembedding = Reembedding(
            self._registry,
            catalog=catalog,
            switch=catalog,
            index=index,
            cache=self._cache,
            models=models,
            folder=data_dir / "reembedding",
            now_ns=now_ns,
        )
        self.reindexing = Reindexing(
            self._registry,
            catalog=catalog,
            index=index,
            operations=self.operations,
            reembedding=self._reembedding,
            now_ns=now_ns,
        )
        self.reorganizing = Reorganizing(
            self._registry,
            catalog=catalog,
            operations=self.operations,
            models=models,
            config=organize,
            now_ns=now_ns,
        )
        self.triggers = ReorganizeTriggers(
            self._registry,
            reorganizing=self.reorganizing,
            operations=self.operations,
            catalog=catalog,
            config=organize,
            now_ns=now_ns,
        )
        self.scenes = Scenes(self._registry, catalog=catalog, switched=self.triggers.scene_switched)
        self.archiving = ArchiveSweep(self._registry, catalog=catalog, config=organize, now_ns=now_ns)
        self.sweep = ExpirySweep(
            self._registry, catalog=catalog, editor=self.edits, pause_s=ingest.expiry_sweep_s, now_ns=now_ns
        )

    @property
    def registry(self) -> NamespaceRegistry:
        """The namespaces at work, for the use cases that have classes of their own."""
        return self._registry

    @property
    def hub(self) -> ProgressHub:
        """Where the pipelines tell how far each memory is."""
        return self._hub

    @property
    def cluster_edits(self) -> ClusterEditing:
        """Edits of clusters by hand."""
        return self._cluster_edits

    # --- life
    async def start(self) -> None:
        """Open the stores; resume operations, and the namespaces that have unfinished work."""
        await self._catalog.open()
        await self._index.start()
        unfinished = await self._catalog.unfinished_operations([OperationKind.REEMBED])
        await self._reembedding.clean(unfinished)
        for operation in unfinished:
            self._registry.embed_again(operation.namespace, running=True)
        await self.operations.start()
        await self.probing.start()
        await self.whole.resume()
        self._registry.resume()
        self.sweep.start()
        self.archiving.start()
        self.triggers.start()

    async def stop(self) -> None:
        """Stop what works on its own, the pipelines, the index and the catalog, in this order."""
        await self.triggers.stop()
        await self.archiving.stop()
        await self.sweep.stop()
        await self.operations.stop()
        await self.edits.stop()
        await self._registry.stop()
        await self._accesses.stop()
        await self._index.stop()
        await self._catalog.close()

    # --- storing
    async def open_ingest(
        self, namespace: str, stream_id: str, *, level: AckLevel, stages: IngestStages
    ) -> StreamSession[IngestItem]:
        """Open or resume a stream; the namespace is created where settings allow."""
        if stages is IngestStages.STORE_ONLY and level > AckLevel.DURABLE:
            raise InvalidField(FieldViolation("open.ack_level", "stages STORE_ONLY acknowledges DURABLE only"))
        if stages is IngestStages.EMBED_ONLY and level > AckLevel.SEARCHABLE:
            raise InvalidField(FieldViolation("open.ack_level", "stages EMBED_ONLY acknowledges up to SEARCHABLE"))
        pipeline = await self._registry.pipeline(namespace, create=True, again=True)
        position = await self._catalog.open_stream(pipeline.state.ns, stream_id)

        def on_stored(keys: Sequence[int]) -> None:
            # Not always the one that the stream began with: a namespace that was embedded again has another.
            now = self._registry.opened(namespace) or pipeline
            now.stored(keys, later=stages is not IngestStages.ALL)

        def on_finish(sessions: frozenset[str]) -> None:
            (self._registry.opened(namespace) or pipeline).end_sessions(sessions)

        return StreamSession(
            namespace=pipeline.state.namespace,
            position=position,
            level=level,
            window_items=self._ingest.window_items,
            catalog=self._catalog,
            hub=self._hub,
            on_stored=on_stored,
            on_finish=on_finish,
            deleted=pipeline.deleted,
            now_ns=self._now_ns,
        )

    async def create_memory(
        self, namespace: str, memory: NewMemory, *, request_id: str, level: AckLevel
    ) -> Created:
        """Store one memory and wait until it reached `level`."""
        pipeline = await self._registry.pipeline(namespace, create=True, again=True)
        state = pipeline.state
        if memory.embedding is not None and len(memory.embedding) != state.dim:
            wrong = f"has {len(memory.embedding)} numbers, this namespace takes {state.dim}"
            raise InvalidField(FieldViolation("memory.embedding", wrong))
        with pipeline.hurry():
            result = await asyncio.shield(
                self._catalog.create(state.ns, memory, request_id=request_id, now_ns=self._now_ns())
            )
            item = result.items[0]
            duplicate = item.disposition is Disposition.DUPLICATE
            if item.key is not None and not duplicate:
                pipeline.stored([item.key])
                await pipeline.reached(item.key, level)
        stored = await self._catalog.memory(state.ns, item.memory_id)
        return Created(stored, duplicate, result.revision)

    # --- reading
    async def get_memory(
        self, namespace: str, memory_id: str, *, embedding: bool, fresh_revision: int
    ) -> tuple[Memory, int]:
        """Return the memory and the revision it was read at."""
        known = await self._known(namespace)
        revision = await self._fresh(fresh_revision)
        return await self._catalog.memory(known.ns, memory_id, embedding=embedding), revision

    async def list_memories(
        self,
        namespace: str,
        *,
        where: Filter | None,
        after: int,
        limit: int,
        fresh_revision: int,
        embeddings: bool = False,
    ) -> tuple[MemoryPage, int]:
        """Page through memories by key; returns the page and the revision it was read at."""
        known = await self._known(namespace)
        revision = await self._fresh(fresh_revision)
        page = await self._catalog.list_memories(
            known.ns, where=where, after=after, limit=limit, embeddings=embeddings
        )
        return page, revision

    async def list_clusters(self, namespace: str, *, include_archived: bool) -> tuple[Sequence[ClusterView], int]:
        """All clusters, largest first."""
        state = (await self._registry.pipeline(namespace, create=False, check=False)).state
        clusters = [
            cluster
            for cluster in state.map.clusters.values()
            if include_archived or cluster.state is ClusterState.ACTIVE
        ]
        clusters.sort(key=lambda cluster: (-cluster.memory_count, cluster.cluster))
        return await views(self._catalog, state, clusters), await self._catalog.revision()

    async def get_cluster(self, namespace: str, cluster: int) -> tuple[ClusterView, int]:
        """One cluster or NotFound."""
        state = (await self._registry.pipeline(namespace, create=False, check=False)).state
        found = state.map.clusters.get(cluster)
        if found is None:
            raise NotFound("cluster", f"c{cluster}")
        return (await views(self._catalog, state, [found]))[0], await self._catalog.revision()

    async def retrieve(self, query: RetrieveQuery) -> AsyncIterator[RetrieveStage]:
        """Answer a query in stages."""
        pipeline = await self._registry.pipeline(query.namespace, create=False, again=True)
        state = pipeline.state
        started = time.perf_counter()
        by_words = ""
        if self._registry.is_embedded_again(query.namespace):
            by_words = "the namespace is being embedded again for another model; it is searched by words alone"
        if query.fresh_revision:
            await self._fresh(query.fresh_revision)
            if not by_words:
                await pipeline.wait_embedded(query.fresh_revision)
        state.counters.add(Outcome.RETRIEVALS)
        models = self._models
        tools = Tools(
            models.embedder, models.token_counter, self._cache, self._retrieve, by_words=by_words, slm=models.slm
        )
        with state.read():
            retrieval = Retrieval(query, state, tools, waited_s=time.perf_counter() - started)
            async for stage in retrieval.stages():
                yield stage
        self._accesses.add(state.ns, retrieval.returned)

    async def namespaces(self) -> Sequence[Namespace]:
        """All namespaces by name."""
        return await self._catalog.list_namespaces()

    async def stats(self, namespace: str) -> SystemStats:
        """Counters of a namespace or NotFound."""
        pipeline = await self._registry.pipeline(namespace, create=False, check=False)
        state = pipeline.state
        rows = await self._catalog.stats(state.ns)
        return SystemStats(
            namespace=state.namespace,
            rows=rows,
            outcomes=state.counters.snapshot(),
            fallbacks=state.counters.fallbacks(),
            profiles_due=sum(due(cluster) for cluster in state.map.clusters.values()),
        )

    async def store_stats(self) -> StoreStats:
        """How the stores stand."""
        return StoreStats(self._index.status(), await asyncio.to_thread(self._bytes_on_disk))

    # --- helpers
    async def _known(self, namespace: str) -> Namespace:
        """Return a namespace. Raises NotFound, NamespaceDeleted."""
        known = await self._catalog.get_namespace(namespace)
        if known.deleting:
            raise NamespaceDeleted(namespace)
        return known

    async def _fresh(self, revision: int) -> int:
        """Return the newest revision, at least `revision`: writes are visible here when they are committed."""
        newest = await self._catalog.revision()
        if revision > newest:
            raise InvalidField(
                FieldViolation("read.at_least_as_fresh", "is newer than anything this server has written")
            )
        return newest
