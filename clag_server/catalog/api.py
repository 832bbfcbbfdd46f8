"""What a catalog promises. Every implementation passes `tests/catalog` (the conformance suite).

All methods are safe to call from one event loop, concurrently. Writes are serialised and grouped: when a write
method returns, its transaction is on disk (SQLite: WAL, synchronous=FULL). A caller that is cancelled while it
waits does not cancel the transaction. Every write has a revision, an integer that grows by commit order over all
namespaces; reads see everything up to the newest returned revision.
Errors are those of `clag_server.types.errors`; a full disk or an I/O error is `StorageFailed`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from clag_server.catalog.api_clusters import ClusterEdits
from clag_server.catalog.api_edits import CatalogEdits
from clag_server.catalog.api_imports import CatalogImports
from clag_server.catalog.api_log import CatalogCopies, ChangeLog, OperationStore
from clag_server.catalog.api_rows import (
    EmbedderPin,
    EpisodeMembers,
    Evolution,
    FailedTask,
    IndexHead,
    IndexOp,
    LexicalHits,
    MatchingKeys,
    MemoryPage,
    Namespace,
    NamespaceStats,
    Waiting,
)
from clag_server.types.cluster import Cluster, Episode, PlacementPlan
from clag_server.types.filters import Filter
from clag_server.types.ingest import AppendResult, IngestItem, StreamPosition, StreamRef
from clag_server.types.memory import Matrix, Memory, MemoryState, NewMemory

__all__ = [
    "Catalog",
    "EmbedderPin",
    "EpisodeMembers",
    "Evolution",
    "FailedTask",
    "IndexFeed",
    "IndexHead",
    "IndexOp",
    "LexicalHits",
    "MatchingKeys",
    "MemoryPage",
    "Namespace",
    "NamespaceStats",
    "Waiting",
]


class IndexFeed(Protocol):
    """The part of a catalog that a vector index reads: an outbox of placements, and all current ones."""

    @property
    def catalog_id(self) -> str:
        """Name of this catalog among all catalogs (hexadecimal, made at its first opening); open it before."""

    async def read_index_ops(self, ns: int, *, after: int, limit: int) -> Sequence[IndexOp]:
        """Read the outbox in order. Ops whose memory was moved or deleted since are still there, in order.

        A PUT that is no longer current has no vector: skip it, its DELETE follows.
        """

    async def ack_index_ops(self, ns: int, *, through: int) -> None:
        """Forget ops up to `through`; the index has them durably."""

    async def current_placements(self, ns: int, *, after: int, limit: int) -> Sequence[IndexOp]:
        """Page through all current placements as PUTs, by placement id (`seq` = `placement_id`): for rebuilds."""

    async def placements_in(self, ns: int, clusters: Sequence[int]) -> Sequence[IndexOp]:
        """Return all current placements of some clusters as PUTs, in any order: for searches without the index."""

    async def index_head(self, ns: int) -> IndexHead:
        """Return the newest op, and the number and digest of the placements at that moment; zeros without any."""


class Catalog(
    IndexFeed, CatalogEdits, ClusterEdits, ChangeLog, OperationStore, CatalogCopies, CatalogImports, Protocol
):
    """The system of record."""

    async def open(self) -> None:
        """Open or create the store and migrate it; raises StorageFailed with the reason."""

    async def close(self) -> None:
        """Finish queued writes, checkpoint and close."""

    @property
    def write_failure(self) -> str:
        """Why the last write failed on the disk or the file (StorageFailed); "" once a write succeeds again."""

    async def probe_write(self) -> None:
        """Try a write that changes nothing but the newest revision; raises StorageFailed."""

    # --- namespaces
    async def ensure_namespace(self, name: str, embedder: EmbedderPin, *, create: bool) -> Namespace:
        """Return the namespace, created if it is missing and `create`; NotFound otherwise.

        An existing one keeps its pin: the caller compares it with `embedder` (see EmbedderMismatch). Raises
        NamespaceDeleted when it should be created while one of that name is being deleted.
        """

    async def get_namespace(self, name: str) -> Namespace:
        """Return the namespace or raise NotFound."""

    async def list_namespaces(self) -> Sequence[Namespace]:
        """All namespaces by name."""

    # --- storing
    async def open_stream(self, ns: int, stream_id: str) -> StreamPosition:
        """Open or resume a stream; earlier openers of it are fenced from now on. Raises NamespaceDeleted."""

    async def append(
        self,
        ns: int,
        items: Sequence[IngestItem],
        *,
        first_seq: int,
        stream: StreamRef | None,
        now_ns: int,
    ) -> AppendResult:
        """Store items `first_seq`, `first_seq`+1, ... and move the watermark, in one transaction.

        Items below the watermark are skipped: no outcome is returned for them unless they are known
        (DUPLICATE with the memory's id where it can be told). A repeated `memory_id` is a DUPLICATE of the
        existing memory. Without a stream (single creates) there is no watermark. Items that supersede others
        mark those `superseded_by` at once (ids that do not exist are ignored). Items without an expire time get
        one where the namespace has a default time to live.
        Raises StreamFenced, SequenceGap, NamespaceDeleted.
        """

    async def finish_stream(self, ns: int, ref: StreamRef, *, last_seq: int) -> StreamPosition:
        """Check that the stream ends at `last_seq` (SequenceGap otherwise) and return its final counts."""

    async def create(self, ns: int, memory: NewMemory, *, request_id: str, now_ns: int) -> AppendResult:
        """Store one memory; the same request id again within 24 h returns the first outcome as DUPLICATE.

        A memory that was deleted meanwhile stays deleted: its outcome has no key. Raises RequestIdReused when that
        id came with another memory, NamespaceDeleted.
        """

    # --- the pipeline
    async def pending(self, ns: int, state: MemoryState, *, limit: int, now_ns: int) -> Sequence[Memory]:
        """Memories in `state` whose next attempt is due, in key order, with embeddings where they have one."""

    async def pending_keys(
        self, ns: int, states: Sequence[MemoryState], *, after: int, limit: int
    ) -> Sequence[int]:
        """Keys of memories in any of the states, ascending, greater than `after`; a hundred times as cheap."""

    async def backlog(self) -> Mapping[int, Mapping[MemoryState, int]]:
        """Memories waiting, by namespace and state (STORED, EMBEDDED, ROUTED); used at start-up and by stats."""

    async def apply_plan(self, ns: int, plan: PlacementPlan, *, now_ns: int) -> int:
        """Apply a plan in one transaction (embedding, lexical index, outbox, changes); returns the revision.

        Memories deleted meanwhile are skipped. Where the count of an episode or cluster that the plan touches is
        not that of its members (a delete came in between), count and sum are made anew from the members: read
        clusters and episodes again after a delete. Raises ValueError, changing nothing, for a cluster or episode
        that does not exist, a removed cluster that still holds memories, a routed episode that is elsewhere;
        NamespaceDeleted.
        The namespace's `next_cluster` and `next_episode` stay above every number that a plan ever wrote.
        """

    async def evolve(self, ns: int, changes: Sequence[Evolution], *, now_ns: int) -> int:
        """Apply evolution with history in one transaction; returns the revision. Raises NamespaceDeleted."""

    async def put_clusters(self, ns: int, clusters: Sequence[Cluster]) -> int:
        """Upsert clusters whole (profiles); `memory_count` stays that of the members. Returns the revision.

        Raises NamespaceDeleted.
        """

    async def record_failure(
        self, ns: int, keys: Sequence[int], *, error: str, max_attempts: int, not_before_ns: int
    ) -> Sequence[FailedTask]:
        """Count a failed attempt for each memory; at `max_attempts` it is QUARANTINED with the error."""

    # --- reading
    async def memory(self, ns: int, memory_id: str, *, embedding: bool = False) -> Memory:
        """Return one memory or raise NotFound."""

    async def memories(self, ns: int, keys: Sequence[int], *, embeddings: bool = False) -> Sequence[Memory]:
        """Return those that exist, in the order asked."""

    async def list_memories(
        self, ns: int, *, where: Filter | None, after: int, limit: int, embeddings: bool = False
    ) -> MemoryPage:
        """Page through memories by key."""

    async def matching_keys(self, ns: int, where: Filter, *, limit: int) -> MatchingKeys:
        """Embedded memories that match, at most `limit`."""

    async def lexical(self, ns: int, tokens: Sequence[str], *, limit: int) -> LexicalHits:
        """BM25 over the namespace's lexical index for any of the tokens (plain data, never query syntax)."""

    async def episode_members(self, ns: int, episodes: Sequence[int]) -> EpisodeMembers:
        """Embedded members of the episodes."""

    async def members_of(self, ns: int, keys: Sequence[int]) -> EpisodeMembers:
        """The same arrays for given memories, in the order asked; missing or unembedded ones left out."""

    async def successors(self, ns: int, *, runs: int, length: int) -> tuple[Matrix, Matrix]:
        """A sample of memories' vectors (n, dim), and of those that followed each in its session (n, dim).

        Sampled are `runs` runs of `length` memories in order of arrival, spread over the namespace; n is 0 where no
        memory followed another.
        """

    async def keys_of_placements(self, ns: int, placement_ids: Sequence[int]) -> Mapping[int, int]:
        """Current placements only: placement id -> key. Stale ids are absent."""

    async def clusters(self, ns: int, numbers: Sequence[int] | None = None) -> Sequence[Cluster]:
        """All clusters (or those of the given numbers that exist), by number."""

    async def episodes(self, ns: int, numbers: Sequence[int] | None = None) -> Sequence[Episode]:
        """All episodes (or those of the given numbers that exist), by number."""

    async def document_frequency(self, ns: int, tokens: Sequence[str]) -> tuple[Mapping[str, int], int]:
        """Memories in the lexical index that hold each token (absent: 0), and the number of indexed memories.

        In a large namespace the first may be a tenth out of date.
        """

    async def touch(self, ns: int, keys: Sequence[int], *, now_ns: int) -> None:
        """Count an access of each memory, best effort (no revision)."""

    async def stats(self, ns: int) -> NamespaceStats:
        """Counters."""

    async def revision(self) -> int:
        """The newest committed revision."""

    # --- deleting
    async def delete(self, ns: int, memory_id: str, *, etag: str, now_ns: int) -> int:
        """Delete a memory everywhere in one transaction; returns the revision.

        Its history goes too. Its episode's and cluster's sums and counts are made anew from what is left (a closed
        episode without members is removed), links of others to it (with the reasons for them in their history) and
        representatives naming it are removed, memories it had superseded no longer are, its cluster's profile is
        marked stale. An empty etag matches any. Raises NotFound, EtagMismatch, NamespaceDeleted.
        """
