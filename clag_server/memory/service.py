"""The domain's front door: what the edge calls. One method a use case, domain values in and out.

Errors are those of `clag_server.types.errors`. Nothing here knows gRPC, SQL or torch.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from clag_server.catalog.api import MemoryPage, Namespace, NamespaceStats
from clag_server.memory.editing import Editor
from clag_server.memory.namespaces import Namespaces
from clag_server.memory.operations import Operations
from clag_server.memory.probing.prober import Prober
from clag_server.memory.reindexing import Reindexing
from clag_server.memory.reorganizing.service import Reorganizing
from clag_server.memory.scenes import Scenes
from clag_server.types.cluster import Cluster
from clag_server.types.filters import Filter
from clag_server.types.ingest import Ack, AckLevel, IngestItem, IngestStages, StreamPosition, StreamTotals
from clag_server.types.memory import FallbackCause, Memory, NewMemory
from clag_server.types.retrieval import RetrieveQuery, RetrieveStage
from clag_server.vectors.api import IndexStatus


@dataclass(frozen=True, slots=True)
class Created:
    """One stored memory; `duplicate` when it was there before (same memory or request id)."""

    memory: Memory
    duplicate: bool
    revision: int


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A cluster with the memory ids of its representatives and its number of episodes."""

    cluster: Cluster
    representative_ids: tuple[str, ...]
    episodes: int


@dataclass(frozen=True, slots=True)
class SystemStats:
    """Counters of one namespace.

    `outcomes` and `fallbacks` count since the server started; `outcomes` are those of `memory.counters.Outcome`
    by name. `profiles_due` are clusters whose profile waits to be written again.
    """

    namespace: Namespace
    rows: NamespaceStats
    outcomes: Mapping[str, int]
    fallbacks: Mapping[FallbackCause, int]
    profiles_due: int


@dataclass(frozen=True, slots=True)
class StoreStats:
    """The stores that all namespaces share: the vector index, and the bytes of the data directory."""

    index: IndexStatus
    bytes_on_disk: int


class IngestSession(Protocol):
    """One open stream of one connection. Use `async with`; leaving it gives up interest, not committed items."""

    @property
    def position(self) -> StreamPosition:
        """Where the stream stood when it was opened."""

    @property
    def window_items(self) -> int:
        """The credit window: items that may be sent but not acknowledged."""

    async def append(self, first_seq: int, items: Sequence[IngestItem]) -> None:
        """Commit items; their outcomes come through `acks`. Once begun, cancellation does not undo a commit.

        Raises SequenceGap, WindowExceeded, StreamFenced, StorageFailed.
        """

    async def finish(self, last_seq: int) -> StreamTotals:
        """Wait until every item reached the stream's level and return the counts (acks go on meanwhile).

        The members' open episodes of this stream's sessions are closed. Raises SequenceGap.
        """

    def acks(self) -> AsyncIterator[Ack]:
        """Acknowledgements as they come, merged where the reader is slow; ends when the session is closed."""

    async def namespace_deleted(self) -> None:
        """Wait until the namespace is being deleted: the stream has to end."""

    async def close(self) -> None:
        """End `acks` after what is committed was acknowledged at DURABLE."""


class MemoryService(Protocol):
    """Every use case of the memory system; some groups of them have doors of their own."""

    @property
    def scenes(self) -> Scenes:
        """What clients tell about scenes and sessions."""

    @property
    def edits(self) -> Editor:
        """Updates and deletes of memories."""

    @property
    def whole(self) -> Namespaces:
        """Namespaces as a whole."""

    @property
    def operations(self) -> Operations:
        """Long-running operations."""

    @property
    def probing(self) -> Prober:
        """The competence probe of the language model."""

    @property
    def reindexing(self) -> Reindexing:
        """Rebuilds of the vector index."""

    @property
    def reorganizing(self) -> Reorganizing:
        """Re-organization of clusters."""

    async def start(self) -> None:
        """Open the stores, resume unfinished work."""

    async def stop(self) -> None:
        """Stop the pipelines after the running step; committed work resumes at the next start."""

    async def open_ingest(
        self, namespace: str, stream_id: str, *, level: AckLevel, stages: IngestStages
    ) -> IngestSession:
        """Open or resume a stream. Raises NotFound, EmbedderMismatch, ModelUnavailable (no embedder known yet)."""

    async def create_memory(
        self, namespace: str, memory: NewMemory, *, request_id: str, level: AckLevel
    ) -> Created:
        """Store one memory and wait until it reached `level`."""

    async def get_memory(
        self, namespace: str, memory_id: str, *, embedding: bool, fresh_revision: int
    ) -> tuple[Memory, int]:
        """Return the memory and the revision it was read at."""

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

    async def list_clusters(self, namespace: str, *, include_archived: bool) -> tuple[Sequence[ClusterView], int]:
        """All clusters, largest first."""

    async def get_cluster(self, namespace: str, cluster: int) -> tuple[ClusterView, int]:
        """One cluster or NotFound."""

    def retrieve(self, query: RetrieveQuery) -> AsyncIterator[RetrieveStage]:
        """Answer in stages: ClusterSelection, MemoryHits, AssembledContext (when asked), RetrieveDone."""

    async def namespaces(self) -> Sequence[Namespace]:
        """All namespaces by name."""

    async def stats(self, namespace: str) -> SystemStats:
        """Counters of a namespace or NotFound."""

    async def store_stats(self) -> StoreStats:
        """How the stores stand."""
