"""Writing outbox ops into one collection: in order, idempotently, durable before anything is acknowledged.

Nothing is written to the backend before there is enough to flush (or a pause): an unflushed row makes every search
of Milvus Lite slower, and what is written but not flushed would have to be remembered twice. So a batch is written,
flushed, recorded and acknowledged as one step; a crash anywhere in it means that the same step is done again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ParamSpec, TypeVar

import structlog

from clag_server.catalog.api import IndexFeed, IndexHead, IndexOp
from clag_server.types.digest import add, placements_digest, subtract
from clag_server.vectors.backend import MilvusBackend, Session
from clag_server.vectors.errors import BackendAwayError, BackendFaultError
from clag_server.vectors.partitions import PartitionLayout
from clag_server.vectors.record import IndexRecord, RecordFile
from clag_server.vectors.settings import IndexSettings

__all__ = ["CollectionWriter", "digest_of"]

_log = structlog.get_logger("clag.vectors")

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class CollectionWriter:
    """The only writer of one namespace's collection, during one session.

    All methods raise BackendAwayError, BackendFaultError, or what the feed and the record file raise.
    """

    ns: int
    feed: IndexFeed
    backend: MilvusBackend
    session: Session
    settings: IndexSettings
    file: RecordFile
    record: IndexRecord
    layout: PartitionLayout
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a batch is applied; who reads the collection between two batches holds it too."""
    touched: set[str] = field(default_factory=set)
    """Partitions that batches changed since somebody emptied this set."""
    skipped: dict[int, int] = field(default_factory=dict)
    """Placements (and clusters) that were gone when their PUT was applied and whose DELETE is still to come."""

    async def start_over(self, dim: int, head: IndexHead) -> None:
        """Replace the collection by an empty one, to be filled as of `head`; unclean until `finish_over`."""
        self.record = IndexRecord(
            dim=dim,
            stamp=secrets.token_hex(8),
            applied_seq=head.seq,
            digest=head.digest,
            clean=False,
        )
        self.skipped.clear()
        self.layout.known.clear()
        self.layout.shared.clear()
        await self._save()
        connection = self.session.connection
        await self._write(connection.drop, self.ns)
        await self._write(connection.create, self.ns, dim, self.record.stamp)

    async def finish_over(self) -> None:
        """Declare the collection whole as of the record's `applied_seq`."""
        await self.flush()
        self.record = replace(self.record, clean=True)
        await self._save()
        await self.feed.ack_index_ops(self.ns, through=self.record.applied_seq)

    async def put(self, ops: Iterable[IndexOp], on_rows: Callable[[int], None] | None = None) -> None:
        """Write PUT ops into the partitions of their clusters; `on_rows` hears of the rows of each request."""
        groups: dict[str, list[IndexOp]] = {}
        shared_before = len(self.layout.shared)
        for op in ops:
            name = self.layout.place(op.cluster)
            self.touched.add(name)
            groups.setdefault(name, []).append(op)
            if name not in self.layout.known:
                # Counted by `place` for the next cluster; created below before a row goes in.
                await self._make_partition(name)
        if len(self.layout.shared) != shared_before:
            await self._save()
        for name, group in groups.items():
            for start in range(0, len(group), self.settings.upsert_rows):
                rows = group[start : start + self.settings.upsert_rows]
                await self._write(self.session.connection.upsert, self.ns, name, rows)
                if on_rows is not None:
                    on_rows(len(rows))

    async def flush(self) -> None:
        """Make what was put durable."""
        await self._write(self.session.connection.flush, self.ns)

    async def apply(self, ops: Sequence[IndexOp]) -> None:
        """Apply ops that follow the record's `applied_seq`, make them durable, record and acknowledge them.

        Args:
            ops: At least one, in outbox order.
        """
        try:
            async with self.writing:
                await self._apply(ops)
        except BackendFaultError:
            await self._doubt()
            raise

    async def _apply(self, ops: Sequence[IndexOp]) -> None:
        deletes: dict[str, list[int]] = {}
        gone: set[int] = set()
        left: set[int] = set()
        for op in ops:
            if not op.put:
                gone.add(op.placement_id)
                left.add(op.cluster)
                deletes.setdefault(self.layout.find(op.cluster), []).append(op.placement_id)
        # A row that goes in the same batch never goes in, nor one without a vector: that goes in a later one.
        # The deletes stay, for an earlier try may have put it.
        came = [op for op in ops if op.put]
        await self.put(op for op in came if op.vector is not None and op.placement_id not in gone)
        for name, ids in deletes.items():
            if name in self.layout.known:
                self.touched.add(name)
                await self._write(self.session.connection.delete, self.ns, name, ids)
        await self.flush()
        self._count(ops, came, gone)
        await self._save()
        await self.feed.ack_index_ops(self.ns, through=self.record.applied_seq)
        await self._drop_empty(left)

    def _count(self, ops: Sequence[IndexOp], came: Sequence[IndexOp], gone: set[int]) -> None:
        """Move the record on: the digest follows every op, as the catalog's does, whatever became of its row."""
        digest = add(self.record.digest, digest_of(came))
        digest = subtract(digest, digest_of([op for op in ops if not op.put]))
        self.record = replace(self.record, applied_seq=ops[-1].seq, digest=digest)
        for op in came:
            if op.vector is None:
                self.skipped[op.placement_id] = op.cluster
        for placement_id in gone & self.skipped.keys():
            del self.skipped[placement_id]

    async def _doubt(self) -> None:
        """Note on disk that the collection cannot be trusted any more."""
        self.record = replace(self.record, clean=False)
        try:
            await self._save()
        except OSError as error:
            # The same full disk, likely. The worker rebuilds anyway; after a crash the counts will tell.
            _log.warning("cannot note that a collection is in doubt", ns=self.ns, error=str(error))

    async def _drop_empty(self, clusters: Iterable[int]) -> None:
        connection = self.session.connection
        for cluster in clusters:
            name = self.layout.find(cluster)
            if cluster in self.layout.shared or name not in self.layout.known:
                continue
            if await self._write(connection.count, self.ns, name) == 0:
                self.layout.known.discard(name)
                await self._write(connection.drop_partition, self.ns, name)

    async def _make_partition(self, name: str) -> None:
        await self._write(self.session.connection.create_partition, self.ns, name)
        self.layout.known.add(name)

    async def _save(self) -> None:
        shared = tuple(sorted(self.layout.shared))
        self.record = replace(self.record, shared=shared, buckets=self.layout.buckets)
        await self.backend.write(self.file.save, self.record)

    async def _write(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            result = await self.backend.write(call, *args, **kwargs)
        except BackendFaultError as error:
            if self.session.lost.is_set():
                raise BackendAwayError(str(error)) from error  # an error of a dying backend says nothing
            raise
        if self.session.lost.is_set():
            raise BackendAwayError("the backend was restarted during a write")
        return result


def digest_of(ops: Sequence[IndexOp]) -> int:
    """Return the digest of the placements that ops speak of."""
    return placements_digest([op.placement_id for op in ops], [op.cluster for op in ops])
