"""Storing imported rows: memories, places, numbers and watermark in one transaction.

Memories come in order of arrival and members of an episode one after another, perhaps in several batches; so counts
and sums of what a batch touched are made anew from the members at its end, as after a delete.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from clag_server.catalog import import_book as book
from clag_server.catalog import lexical, streams
from clag_server.catalog.import_book import ImportBook
from clag_server.catalog.import_clusters import new_episode
from clag_server.catalog.import_homes import ImportHomes
from clag_server.catalog.import_links import ImportLinks
from clag_server.catalog.import_values import mapped_routing, memory_row, old_values, says_the_same
from clag_server.catalog.namespaces import Live, require_live
from clag_server.catalog.placements import Placed, forget_failures, queue_ops
from clag_server.catalog.rows import to_json
from clag_server.catalog.schema import ChangeKind, link_targets, memories, memory_history
from clag_server.catalog.sums import Touched, settle
from clag_server.catalog.traces import forget_in_profiles
from clag_server.catalog.transaction import ChangeRow, WriteTx, compile_insert
from clag_server.types.change import HistoryCause
from clag_server.types.ingest import Disposition, Rejection, StoredItem, StreamRef
from clag_server.types.memory import MemoryState
from clag_server.types.transfer import (
    ImportedCluster,
    ImportedMemory,
    ImportedNamespace,
    ImportOptions,
    ImportResult,
    ImportRow,
    OnConflict,
)

_INSERT_MEMORY: Final = compile_insert(memories)
_INSERT_HISTORY: Final = compile_insert(memory_history)
_COUNT: Final = (
    "UPDATE namespaces SET created = created + ?, duplicates = duplicates + ?, rejected = rejected + ?,"
    " memories = memories + ? WHERE ns = ?"
)
_COLUMNS: Final = tuple(column.name for column in memories.c)


def import_rows(
    tx: WriteTx,
    ns: int,
    rows: Sequence[ImportRow],
    *,
    first_seq: int,
    stream: StreamRef,
    options: ImportOptions,
    now_ns: int,
) -> ImportResult:
    """Store rows and move the stream's watermark (see `catalog.api_imports`)."""
    live = require_live(tx, ns)
    skip = streams.check(tx.connection, ns, stream, first_seq=first_seq)
    batch = _Import(tx, ns, live, stream, options, now_ns)
    batch.look_up([row.memory.memory_id for row in rows[skip:] if isinstance(row, ImportedMemory)])
    items = [batch.take(row, seq) for seq, row in enumerate(rows[skip:], start=first_seq + skip)]
    return batch.finished(items)


class _Import:
    """One batch, inside one transaction."""

    def __init__(
        self, tx: WriteTx, ns: int, live: Live, stream: StreamRef, options: ImportOptions, now_ns: int
    ) -> None:
        self._tx = tx
        self._ns = ns
        self._live = live
        self._stream = stream
        self._options = options
        self._now_ns = now_ns
        self._book = ImportBook(tx, ns, stream.stream_id)
        self._links = ImportLinks(tx, ns, self._book, now_ns=now_ns)
        self._homes = ImportHomes(tx, ns, self._book, dim=live.dim, keep=options.keep_organization)
        self._rows: list[tuple[Any, ...]] = []
        self._changes: list[ChangeRow] = []
        self._puts: list[Placed] = []
        self._deletes: list[Placed] = []
        self._tokens: list[tuple[int, str]] = []
        self._touched = Touched(always=True)
        self._waiting: list[int] = []
        self._new = self._replaced = 0

    def look_up(self, memory_ids: Sequence[str]) -> None:
        """Find out which ids are there."""
        self._links.look_up(memory_ids)

    def take(self, row: ImportRow, seq: int) -> StoredItem:
        """Store one row; returns what became of it."""
        match row:
            case Rejection():
                return StoredItem(seq, Disposition.REJECTED, "", None, row)
            case ImportedNamespace():
                self._book.put(book.SPACE, "", int(row.same_space))
                return StoredItem(seq, Disposition.CREATED, "", None, None)
            case ImportedCluster():
                return self._cluster(row, seq)
            case ImportedMemory():
                return self._memory(row, seq)

    def finished(self, items: Sequence[StoredItem]) -> ImportResult:
        """Write what was gathered, and count."""
        self._flush()
        tx, ns = self._tx, self._ns
        self._homes.save()
        lexical.add(tx, ns, self._tokens)
        queue_ops(tx, ns, puts=self._puts, deletes=self._deletes)
        settle(tx, ns, self._touched)
        self._links.save()
        kinds = [item.disposition for item in items]
        created, duplicates = kinds.count(Disposition.CREATED), kinds.count(Disposition.DUPLICATE)
        rejected = len(kinds) - created - duplicates
        if kinds:
            streams.advance(tx, ns, self._stream, created=created, duplicates=duplicates, rejected=rejected)
            # A replaced memory is no new one: what was created and not deleted is what there is.
            tx.connection.exec_driver_sql(_COUNT, (self._new, duplicates + self._replaced, rejected, self._new, ns))
        return ImportResult(
            items=items,
            revision=tx.revision,
            episodes=frozenset(self._touched.episodes),
            clusters=frozenset(self._touched.clusters),
            waiting=self._waiting,
            episodes_through=self._homes.episodes_through,
        )

    def _cluster(self, row: ImportedCluster, seq: int) -> StoredItem:
        if not self._options.keep_organization:
            return StoredItem(seq, Disposition.CREATED, "", None, None)
        number = self._homes.found(row)
        if number is None:
            return StoredItem(seq, Disposition.DUPLICATE, "", None, None)
        self._touched.clusters.add(number)
        return StoredItem(seq, Disposition.CREATED, "", None, None)

    def _memory(self, row: ImportedMemory, seq: int) -> StoredItem:
        memory_id, keep = row.memory.memory_id, self._options.keep_organization
        key = self._links.key_of(memory_id)
        if key is not None and self._options.on_conflict is OnConflict.KEEP:
            return StoredItem(seq, Disposition.DUPLICATE, memory_id, key, None)
        same_space = self._book.get(book.SPACE, "") == 1
        embedding = row.memory.embedding if same_space else None
        if embedding is not None and embedding.shape != (self._live.dim,):
            wrong = f"has {len(embedding)} numbers, the namespace holds {self._live.dim}"
            return StoredItem(seq, Disposition.REJECTED, memory_id, None, Rejection("memory.embedding", wrong))
        if key is None:
            key = self._tx.next_key()
            self._insert(row, key, embedding)
            self._new += 1
        else:
            before = self._before(key)
            # Its place is the row's to say only where the organization is taken over.
            if not keep and says_the_same(
                before, row.memory, embedding, expires_by_default=self._live.time_to_live_ns is not None
            ):
                return StoredItem(seq, Disposition.DUPLICATE, memory_id, key, None)
            self._replace(row, before, embedding)
            self._replaced += 1
        self._links.came(row.memory, key, keep=keep)
        return StoredItem(seq, Disposition.CREATED, memory_id, key, None)

    def _before(self, key: int) -> sa.Row[*tuple[Any, ...]]:
        """Return the row of a memory that is there; it may have come in this batch."""
        self._flush()
        return self._tx.connection.execute(
            sa.select(memories).where(memories.c.ns == self._ns, memories.c.key == key)
        ).one()

    def _insert(self, row: ImportedMemory, key: int, embedding: Any) -> None:
        position = self._homes.position(row, None)
        values = self._values(row, key, position, embedding)
        revision = self._tx.next_revision()
        self._rows.append(memory_row(self._ns, values, revision=revision))
        self._changes.append(
            (revision, self._ns, ChangeKind.MEMORY_CREATED, key, None, self._now_ns, values["cluster"], None)
        )

    def _replace(self, row: ImportedMemory, before: sa.Row[*tuple[Any, ...]], embedding: Any) -> None:
        """Give a memory that is there the row's content and place; its key, and links of others to it, stay."""
        tx, ns, key = self._tx, self._ns, before.key
        self._tokens = [entry for entry in self._tokens if entry[0] != key]  # a row of this batch, replaced by it
        if before.placement_id is not None:
            self._deletes.append(Placed(key, before.placement_id, before.cluster, before.event_time_ns))
            lexical.remove(tx, ns, [key])
            self._touched.episodes.add(before.episode)
            self._touched.clusters.add(before.cluster)
            forget_in_profiles(tx, ns, [key], [], now_ns=self._now_ns)
        tx.connection.execute(sa.delete(link_targets).where(link_targets.c.ns == ns, link_targets.c.source == key))
        forget_failures(tx, [key])
        book.release(tx, ns, [key])
        position = self._homes.position(row, (before.session_id, before.session_position))
        values = self._values(row, key, position, embedding)
        revision = tx.log_change(
            ns, ChangeKind.MEMORY_UPDATED, key, time_ns=self._now_ns, cluster=values["cluster"]
        )
        old = to_json(old_values(before, values))
        entry = (revision, ns, key, key, self._now_ns, old, HistoryCause.CLIENT, "", before.cluster)
        tx.executemany(_INSERT_HISTORY, [entry])
        new = dict(zip(_COLUMNS, memory_row(ns, values, revision=revision), strict=True))
        tx.connection.execute(sa.update(memories).where(memories.c.ns == ns, memories.c.key == key).values(new))

    def _values(self, row: ImportedMemory, key: int, position: int, embedding: Any) -> dict[str, Any]:
        """Columns of the memory that are decided here; placed at once where that is possible."""
        memory, keep = row.memory, self._options.keep_organization
        place = self._homes.of(row)
        values: dict[str, Any] = {
            "memory": memory,
            "key": key,
            "position": position,
            "keep": keep,
            "embedding": embedding,
            "state": MemoryState.STORED,
            "cluster": None,
            "episode": None,
            "placement_id": None,
            "routing": mapped_routing(memory.routing, self._book) if keep else None,
            "now_ns": self._now_ns,
            "expire_time_ns": memory.expire_time_ns,
        }
        if memory.expire_time_ns is None and self._live.time_to_live_ns is not None:
            values["expire_time_ns"] = self._now_ns + self._live.time_to_live_ns
        if place is None or embedding is None:
            if place is not None:
                book.reserve(self._tx, self._ns, key, place)
            self._waiting.append(key)
            return values
        evolved = memory.state is MemoryState.EVOLVED
        placement = Placed(key, self._tx.next_placement(), place.cluster, memory.event_time_ns)
        self._puts.append(placement)
        self._tokens.append((key, row.lexical))
        if place.episode not in self._touched.episodes:
            new_episode(
                self._tx, self._ns, place, memory.session_id, position, dim=self._live.dim, now_ns=self._now_ns
            )
        self._touched.episodes.add(place.episode)
        self._touched.clusters.add(place.cluster)
        values.update(
            state=MemoryState.EVOLVED if evolved else MemoryState.ROUTED,
            cluster=place.cluster,
            episode=place.episode,
            placement_id=placement.placement_id,
        )
        return values

    def _flush(self) -> None:
        """Insert the gathered rows."""
        self._tx.executemany(_INSERT_MEMORY, self._rows)
        self._tx.log_changes(self._changes)
        self._rows, self._changes = [], []
