"""The memory system: namespaces, their pipelines, and every use case of `memory.service.MemoryService`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence

import structlog

from clag_server.catalog.api import Catalog, MemoryPage, Namespace
from clag_server.memory.cluster_editing import ClusterEditing
from clag_server.memory.cluster_views import views
from clag_server.memory.config import IngestConfig, OrganizeConfig, RetrieveConfig
from clag_server.memory.counters import Outcome
from clag_server.memory.episode_cache import EpisodeCache
from clag_server.memory.ingest import StreamSession
from clag_server.memory.namespace import NamespaceState
from clag_server.memory.profiles import due
from clag_server.memory.progress import KeyProgress, ProgressHub
from clag_server.memory.registry import Models, NamespaceRegistry
from clag_server.memory.retrieving import Retrieval, Tools
from clag_server.memory.service import ClusterView, Created, StoreStats, SystemStats
from clag_server.types.cluster import ClusterState
from clag_server.types.errors import FieldViolation, InvalidField, NotFound
from clag_server.types.filters import Filter
from clag_server.types.ingest import AckLevel, Disposition, IngestItem, IngestStages
from clag_server.types.memory import Memory, MemoryState, NewMemory
from clag_server.types.retrieval import RetrieveQuery, RetrieveStage
from clag_server.vectors.api import VectorIndex

_log = structlog.get_logger(__name__)


class MemorySystem:
    """Implements `MemoryService` over a catalog, a vector index and models, which it opens and closes."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        index: VectorIndex,
        models: Models,
        ingest: IngestConfig,
        organize: OrganizeConfig,
        retrieve: RetrieveConfig,
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
        self._cache = EpisodeCache(catalog, max_memories=retrieve.cache_vectors)
        self._registry = NamespaceRegistry(
            catalog=catalog,
            index=index,
            models=models,
            ingest=ingest,
            organize=organize,
            hub=self._hub,
            now_ns=now_ns,
        )
        self._cluster_edits = ClusterEditing(self._registry, catalog=catalog, now_ns=now_ns)
        self._touching: set[asyncio.Task[None]] = set()

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
        """Open the stores and resume the namespaces that have unfinished work."""
        await self._catalog.open()
        await self._index.start()
        await self._registry.resume()

    async def stop(self) -> None:
        """Stop the pipelines, the index and the catalog, in this order."""
        await self._registry.stop()
        await asyncio.gather(*self._touching, return_exceptions=True)
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
        pipeline = await self._registry.pipeline(namespace, create=True)
        position = await self._catalog.open_stream(pipeline.state.ns, stream_id)

        def on_stored(keys: Sequence[int]) -> None:
            pipeline.stored(keys, later=stages is not IngestStages.ALL)

        return StreamSession(
            namespace=pipeline.state.namespace,
            position=position,
            level=level,
            window_items=self._ingest.window_items,
            catalog=self._catalog,
            hub=self._hub,
            on_stored=on_stored,
            on_finish=pipeline.end_sessions,
            now_ns=self._now_ns,
        )

    async def create_memory(
        self, namespace: str, memory: NewMemory, *, request_id: str, level: AckLevel
    ) -> Created:
        """Store one memory and wait until it reached `level`."""
        pipeline = await self._registry.pipeline(namespace, create=True)
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
                await self._reached(item.key, level)
        stored = await self._catalog.memory(state.ns, item.memory_id)
        return Created(stored, duplicate, result.revision)

    async def delete_memory(self, namespace: str, memory_id: str, *, etag: str, allow_missing: bool) -> int:
        """Delete a memory everywhere; returns the revision."""
        state = (await self._registry.pipeline(namespace, create=False, check=False)).state
        async with state.lock:
            try:
                memory = await self._catalog.memory(state.ns, memory_id)
                revision = await asyncio.shield(
                    self._catalog.delete(state.ns, memory_id, etag=etag, now_ns=self._now_ns())
                )
            except NotFound:
                if allow_missing:
                    return await self._catalog.revision()
                raise
            await state.refresh(episode=memory.episode, cluster=memory.cluster)
        gone = KeyProgress(memory.key, AckLevel.ORGANIZED, None, MemoryState.QUARANTINED, "deleted")
        self._hub.publish([gone])
        return revision

    # --- reading
    async def get_memory(
        self, namespace: str, memory_id: str, *, embedding: bool, fresh_revision: int
    ) -> tuple[Memory, int]:
        """Return the memory and the revision it was read at."""
        known = await self._catalog.get_namespace(namespace)
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
        known = await self._catalog.get_namespace(namespace)
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
        pipeline = await self._registry.pipeline(query.namespace, create=False)
        state = pipeline.state
        started = time.perf_counter()
        if query.fresh_revision:
            await self._fresh(query.fresh_revision)
            await pipeline.wait_embedded(query.fresh_revision)
        state.counters.add(Outcome.RETRIEVALS)
        tools = Tools(self._models.embedder, self._models.token_counter, self._cache, self._retrieve)
        retrieval = Retrieval(query, state, tools, waited_s=time.perf_counter() - started)
        async for stage in retrieval.stages():
            yield stage
        self._touch(state, retrieval.returned)

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
    async def _reached(self, key: int, level: AckLevel) -> None:
        """Wait until a memory reached the level."""
        if level <= AckLevel.DURABLE:
            return
        reached = asyncio.Event()

        def listener(progress: KeyProgress) -> None:
            if progress.level >= level:
                reached.set()

        self._hub.listen(key, listener)
        try:
            await reached.wait()
        finally:
            self._hub.forget(key, listener)

    async def _fresh(self, revision: int) -> int:
        """Return the newest revision, at least `revision`: writes are visible here when they are committed."""
        newest = await self._catalog.revision()
        if revision > newest:
            raise InvalidField(
                FieldViolation("read.at_least_as_fresh", "is newer than anything this server has written")
            )
        return newest

    def _touch(self, state: NamespaceState, keys: Sequence[int]) -> None:
        """Count accesses behind the answer; best effort."""
        if not keys:
            return
        task = asyncio.create_task(self._catalog.touch(state.ns, keys, now_ns=self._now_ns()))
        self._touching.add(task)
        task.add_done_callback(self._touching.discard)
