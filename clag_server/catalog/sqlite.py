"""The catalog on SQLite: which door of `catalog.api` leads to which room."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from clag_server.catalog import (
    evolution,
    evolving,
    lexical,
    placements,
    plans,
    reads,
    requests,
    statistics,
    store,
    streams,
)
from clag_server.catalog.api import (
    EpisodeMembers,
    Evolution,
    FailedTask,
    IndexHead,
    IndexOp,
    LexicalHits,
    MatchingKeys,
    MemoryPage,
    NamespaceStats,
)
from clag_server.catalog.common_tokens import CommonTokens
from clag_server.catalog.connections import connect_writer, driver_of, make_engine, prepare_file, storage_errors
from clag_server.catalog.frequencies import FrequencyCache
from clag_server.catalog.ownership import take_over
from clag_server.catalog.readers import ReaderPool
from clag_server.catalog.runs import successors
from clag_server.catalog.sqlite_clusters import SqliteClusters
from clag_server.catalog.sqlite_edits import SqliteEdits
from clag_server.catalog.sqlite_imports import SqliteImports
from clag_server.catalog.sqlite_log import SqliteLog
from clag_server.catalog.sqlite_reembed import SqliteReembed
from clag_server.catalog.writer import GroupWriter
from clag_server.types.cluster import Cluster, Episode, PlacementPlan
from clag_server.types.filters import Filter
from clag_server.types.ingest import AppendResult, IngestItem, StreamPosition, StreamRef
from clag_server.types.memory import Matrix, Memory, MemoryState, NewMemory

_log = structlog.get_logger(__name__)


class SqliteCatalog(SqliteEdits, SqliteClusters, SqliteLog, SqliteImports, SqliteReembed):
    """`catalog.api.Catalog` in one SQLite file. What each method promises is said there.

    Args:
        path: the database file; made, with its directory, when missing.
        readers: connections (and threads) for reads, which never wait for a write.
    """

    def __init__(self, path: Path, *, readers: int = 2) -> None:
        super().__init__(path, readers=readers)
        self._frequencies = FrequencyCache()
        self._common = CommonTokens()

    async def open(self) -> None:
        """Open or create the file and migrate it."""
        await asyncio.to_thread(self._open)

    async def close(self) -> None:
        """Finish queued writes and running reads, move the log into the database, and close."""
        await asyncio.to_thread(self._close)

    # --- storing
    async def open_stream(self, ns: int, stream_id: str) -> StreamPosition:
        """Open or resume a stream."""
        return await self._write(lambda tx: streams.open_stream(tx, ns, stream_id))

    async def append(
        self, ns: int, items: Sequence[IngestItem], *, first_seq: int, stream: StreamRef | None, now_ns: int
    ) -> AppendResult:
        """Store a batch."""
        return await self._write(
            lambda tx: store.append(tx, ns, items, first_seq=first_seq, stream=stream, now_ns=now_ns)
        )

    async def finish_stream(self, ns: int, ref: StreamRef, *, last_seq: int) -> StreamPosition:
        """Check a stream's end."""
        return await self._read(lambda connection: streams.finish_stream(connection, ns, ref, last_seq=last_seq))

    async def create(self, ns: int, memory: NewMemory, *, request_id: str, now_ns: int) -> AppendResult:
        """Store one memory."""
        return await self._write(lambda tx: requests.create(tx, ns, memory, request_id=request_id, now_ns=now_ns))

    # --- the pipeline
    async def pending(self, ns: int, state: MemoryState, *, limit: int, now_ns: int) -> Sequence[Memory]:
        """Return memories that wait in `state` and are due."""
        return await self._read(lambda c: reads.pending(c, ns, state, limit=limit, now_ns=now_ns))

    async def pending_keys(
        self, ns: int, states: Sequence[MemoryState], *, after: int, limit: int
    ) -> Sequence[int]:
        """Return keys of memories that wait."""
        return await self._read(lambda c: reads.pending_keys(c, ns, states, after=after, limit=limit))

    async def backlog(self) -> Mapping[int, Mapping[MemoryState, int]]:
        """Return how many memories wait."""
        return await self._read(statistics.backlog)

    async def apply_plan(self, ns: int, plan: PlacementPlan, *, now_ns: int) -> int:
        """Apply a placement plan."""
        return await self._write_into(ns, lambda tx: plans.apply_plan(tx, ns, plan, now_ns=now_ns))

    async def evolve(self, ns: int, changes: Sequence[Evolution], *, now_ns: int) -> int:
        """Apply evolution."""
        return await self._write_into(ns, lambda tx: evolving.evolve(tx, ns, changes, now_ns=now_ns))

    async def put_clusters(self, ns: int, clusters: Sequence[Cluster]) -> int:
        """Write clusters whole."""
        return await self._write_into(ns, lambda tx: evolution.put_clusters(tx, ns, clusters))

    async def record_failure(
        self, ns: int, keys: Sequence[int], *, error: str, max_attempts: int, not_before_ns: int
    ) -> Sequence[FailedTask]:
        """Count failed attempts."""
        return await self._write(
            lambda tx: evolution.record_failure(
                tx, ns, keys, error=error, max_attempts=max_attempts, not_before_ns=not_before_ns
            )
        )

    async def touch(self, ns: int, keys: Sequence[int], *, now_ns: int) -> None:
        """Count accesses."""
        await self._write(lambda tx: evolution.touch(tx, ns, keys, now_ns=now_ns))

    # --- reading
    async def memory(self, ns: int, memory_id: str, *, embedding: bool = False) -> Memory:
        """Return one memory."""
        return await self._read(lambda c: reads.memory(c, ns, memory_id, embedding=embedding))

    async def memories(self, ns: int, keys: Sequence[int], *, embeddings: bool = False) -> Sequence[Memory]:
        """Return memories by key."""
        return await self._read(lambda c: reads.by_keys(c, ns, keys, embeddings=embeddings))

    async def list_memories(
        self, ns: int, *, where: Filter | None, after: int, limit: int, embeddings: bool = False
    ) -> MemoryPage:
        """Return a page of memories."""
        return await self._read(
            lambda c: reads.page(c, ns, where=where, after=after, limit=limit, embeddings=embeddings)
        )

    async def matching_keys(self, ns: int, where: Filter, *, limit: int) -> MatchingKeys:
        """Return embedded memories that match."""
        return await self._read(lambda c: reads.matching_keys(c, ns, where, limit=limit))

    async def lexical(self, ns: int, tokens: Sequence[str], *, limit: int) -> LexicalHits:
        """Return lexical matches."""
        return await self._read(lambda c: lexical.search(c, ns, tokens, limit=limit, common=self._common))

    async def document_frequency(self, ns: int, tokens: Sequence[str]) -> tuple[Mapping[str, int], int]:
        """Count the memories that hold each token."""
        return await self._read(lambda c: self._frequencies.of(c, ns, tokens))

    async def episode_members(self, ns: int, episodes: Sequence[int]) -> EpisodeMembers:
        """Return the members of episodes."""
        return await self._read(lambda c: reads.episode_members(c, ns, episodes))

    async def members_of(self, ns: int, keys: Sequence[int]) -> EpisodeMembers:
        """Return the same for given memories."""
        return await self._read(lambda c: reads.members_of(c, ns, keys))

    async def successors(self, ns: int, *, runs: int, length: int) -> tuple[Matrix, Matrix]:
        """Return a sample of memories and of what followed each."""
        return await self._read(lambda c: successors(c, ns, runs=runs, length=length))

    async def keys_of_placements(self, ns: int, placement_ids: Sequence[int]) -> Mapping[int, int]:
        """Return the keys of current placements."""
        return await self._read(lambda c: reads.keys_of_placements(c, ns, placement_ids))

    async def clusters(self, ns: int, numbers: Sequence[int] | None = None) -> Sequence[Cluster]:
        """Return clusters."""
        return await self._read(lambda c: reads.list_clusters(c, ns, numbers))

    async def episodes(self, ns: int, numbers: Sequence[int] | None = None) -> Sequence[Episode]:
        """Return episodes."""
        return await self._read(lambda c: reads.list_episodes(c, ns, numbers))

    async def stats(self, ns: int) -> NamespaceStats:
        """Return counters."""
        return await self._read(lambda c: statistics.stats(c, ns))

    async def revision(self) -> int:
        """Return the newest committed revision."""
        return await self._read(statistics.revision)

    # --- can it write?
    @property
    def write_failure(self) -> str:
        """Return why the last write failed on the disk or the file, "" when it did not."""
        return self._writer.failure if self._writer is not None else "the catalog is not open"

    async def probe_write(self) -> None:
        """Write a page: an update that changes nothing would not reach the disk."""
        await self._write(lambda tx: tx.next_revision())

    # --- the vector index's feed
    async def read_index_ops(self, ns: int, *, after: int, limit: int) -> Sequence[IndexOp]:
        """Return the outbox in order."""
        return await self._read(lambda c: placements.read_index_ops(c, ns, after=after, limit=limit))

    async def ack_index_ops(self, ns: int, *, through: int) -> None:
        """Forget the outbox up to `through`."""
        await self._write(lambda tx: placements.ack_index_ops(tx, ns, through=through))

    async def current_placements(self, ns: int, *, after: int, limit: int) -> Sequence[IndexOp]:
        """Return a page of current placements."""
        return await self._read(lambda c: placements.current_placements(c, ns, after=after, limit=limit))

    async def placements_in(self, ns: int, clusters: Sequence[int]) -> Sequence[IndexOp]:
        """Return the current placements of some clusters."""
        return await self._read(lambda c: placements.placements_in(c, ns, clusters))

    async def index_head(self, ns: int) -> IndexHead:
        """Return the outbox's newest step, and the number and digest of placements."""
        return await self._read(lambda c: placements.index_head(c, ns))

    def _open(self) -> None:
        with storage_errors():
            prepare_file(self._path)
            engine = make_engine(self._path)
            connection = connect_writer(engine)
            try:
                self._owner = take_over(connection)
                self._readers = ReaderPool(engine, self._reader_count)
            except BaseException:
                connection.close()
                raise
        self._connection = connection
        self._writer = GroupWriter(connection, self._owner)

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._readers is not None:
            self._readers.close()
        if self._connection is not None:
            try:
                driver_of(self._connection).execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error as error:  # the log stays beside the database and is read at the next open
                _log.warning("catalog checkpoint failed", error=str(error))
            self._connection.close()
            self._connection = None
