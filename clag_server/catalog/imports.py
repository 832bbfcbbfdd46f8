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
from clag_server.catalog.import_clusters import INSERT_LINK, new_cluster, new_episode, still_linked
from clag_server.catalog.import_sessions import SessionPositions
from clag_server.catalog.import_values import mapped_routing, memory_row, old_values
from clag_server.catalog.namespaces import Live, require_live
from clag_server.catalog.placements import Placed, forget_failures, queue_ops
from clag_server.catalog.rows import to_json
from clag_server.catalog.schema import ChangeKind, link_targets, memories, memory_history
from clag_server.catalog.store import supersede
from clag_server.catalog.sums import Touched, settle
from clag_server.catalog.traces import chunks, forget_in_profiles
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
    ReservedPlace,
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
    batch.know([row.memory.memory_id for row in rows[skip:] if isinstance(row, ImportedMemory)])
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
        self._known: dict[str, int] = {}
        self._rows: list[tuple[Any, ...]] = []
        self._changes: list[ChangeRow] = []
        self._links: dict[int, tuple[str, ...]] = {}
        self._supersedes: list[tuple[str, int, tuple[str, ...]]] = []
        self._came: dict[str, int] = {}
        self._puts: list[Placed] = []
        self._deletes: list[Placed] = []
        self._tokens: list[tuple[int, str]] = []
        self._positions = SessionPositions(tx, ns)
        self._touched = Touched(always=True)
        self._waiting: list[int] = []
        self._episodes_through = 0
        self._new = self._replaced = 0

    def know(self, memory_ids: Sequence[str]) -> None:
        """Look up which ids are there."""
        for some in chunks(memory_ids):
            found = self._tx.connection.execute(
                sa.select(memories.c.memory_id, memories.c.key).where(
                    memories.c.ns == self._ns, memories.c.memory_id.in_(some)
                )
            )
            self._known.update((row.memory_id, row.key) for row in found)

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
        self._positions.save()
        lexical.add(tx, ns, self._tokens)
        queue_ops(tx, ns, puts=self._puts, deletes=self._deletes)
        settle(tx, ns, self._touched)
        self._link()
        for memory_id, key, older in self._supersedes:
            self._supersede(memory_id, key, older)
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
            episodes_through=self._episodes_through,
        )

    def _cluster(self, row: ImportedCluster, seq: int) -> StoredItem:
        if not self._options.keep_organization:
            return StoredItem(seq, Disposition.CREATED, "", None, None)
        if self._book.get(book.CLUSTER, row.cluster_id) is not None:
            return StoredItem(seq, Disposition.DUPLICATE, "", None, None)
        number = new_cluster(self._tx, self._ns, row, dim=self._live.dim)
        self._book.put(book.CLUSTER, row.cluster_id, number)
        for rank, memory_id in enumerate(row.representative_ids[: book.MAX_REPRESENTATIVES]):
            self._book.put(book.REPRESENTATIVE, memory_id, number * book.MAX_REPRESENTATIVES + rank)
        self._touched.clusters.add(number)
        return StoredItem(seq, Disposition.CREATED, "", None, None)

    def _memory(self, row: ImportedMemory, seq: int) -> StoredItem:
        memory_id = row.memory.memory_id
        existing = self._known.get(memory_id)
        if existing is not None and self._options.on_conflict is OnConflict.KEEP:
            return StoredItem(seq, Disposition.DUPLICATE, memory_id, existing, None)
        same_space = self._book.get(book.SPACE, "") == 1
        embedding = row.memory.embedding if same_space else None
        if embedding is not None and embedding.shape != (self._live.dim,):
            wrong = f"has {len(embedding)} numbers, the namespace holds {self._live.dim}"
            return StoredItem(seq, Disposition.REJECTED, memory_id, None, Rejection("memory.embedding", wrong))
        if existing is None:
            key = self._known[memory_id] = self._tx.next_key()
            self._insert(row, key, embedding)
            self._new += 1
        else:
            key = existing
            self._flush()  # it may be a row of this batch
            self._replace(row, key, embedding)
            self._replaced += 1
        self._came[memory_id] = key
        if row.memory.supersedes:
            self._supersedes.append((memory_id, key, row.memory.supersedes))
        return StoredItem(seq, Disposition.CREATED, memory_id, key, None)

    def _insert(self, row: ImportedMemory, key: int, embedding: Any) -> None:
        position = self._position(row, None)
        values = self._values(row, key, position, embedding)
        revision = self._tx.next_revision()
        self._rows.append(memory_row(self._ns, values, revision=revision))
        self._changes.append(
            (revision, self._ns, ChangeKind.MEMORY_CREATED, key, None, self._now_ns, values["cluster"], None)
        )

    def _replace(self, row: ImportedMemory, key: int, embedding: Any) -> None:
        """Give a memory that is there the row's content and place; its key, and links of others to it, stay."""
        tx, ns = self._tx, self._ns
        self._tokens = [entry for entry in self._tokens if entry[0] != key]  # a row of this batch, replaced by it
        before = tx.connection.execute(sa.select(memories).where(memories.c.ns == ns, memories.c.key == key)).one()
        if before.placement_id is not None:
            self._deletes.append(Placed(key, before.placement_id, before.cluster, before.event_time_ns))
            lexical.remove(tx, ns, [key])
            self._touched.episodes.add(before.episode)
            self._touched.clusters.add(before.cluster)
            forget_in_profiles(tx, ns, [key], [], now_ns=self._now_ns)
        tx.connection.execute(sa.delete(link_targets).where(link_targets.c.ns == ns, link_targets.c.source == key))
        forget_failures(tx, [key])
        book.release(tx, ns, [key])
        values = self._values(
            row, key, self._position(row, (before.session_id, before.session_position)), embedding
        )
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
        place = self._place(row) if keep else None
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
        if keep:
            self._links[key] = tuple(link.memory_id for link in memory.links if link.memory_id != memory.memory_id)
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

    def _place(self, row: ImportedMemory) -> ReservedPlace | None:
        """Return where a memory belongs by the source's own organization; None when it had no place there."""
        cluster = self._book.get(book.CLUSTER, row.cluster_id) if row.cluster_id and row.episode_id else None
        if cluster is None:
            return None
        # Members of one episode are in one cluster; rows that say otherwise make an episode for each.
        source = f"{row.episode_id}@{row.cluster_id}"
        episode = self._book.get(book.EPISODE, source)
        if episode is None:
            episode = self._next_episode()
            self._book.put(book.EPISODE, source, episode)
        return ReservedPlace(episode, cluster)

    def _next_episode(self) -> int:
        row = self._tx.connection.exec_driver_sql(
            "UPDATE namespaces SET next_episode = next_episode + 1 WHERE ns = ? RETURNING next_episode", (self._ns,)
        ).one()
        self._episodes_through = int(row[0]) - 1
        return self._episodes_through

    def _position(self, row: ImportedMemory, before: tuple[str, int] | None) -> int:
        """The memory's place in its session: that which it has, else its own where that is free."""
        session = row.memory.session_id
        if before is not None and before[0] == session:
            return before[1]
        return self._positions.take(session, row.memory.session_position if self._options.keep_organization else 0)

    def _flush(self) -> None:
        """Insert the gathered rows."""
        self._tx.executemany(_INSERT_MEMORY, self._rows)
        self._tx.log_changes(self._changes)
        self._rows, self._changes = [], []

    def _link(self) -> None:
        """Say who links to whom; targets that have not come are awaited."""
        tx, ns = self._tx, self._ns
        wanted = {target for targets in self._links.values() for target in targets}
        self.know(sorted(wanted - self._known.keys()))
        rows: list[tuple[Any, ...]] = []
        for key, targets in self._links.items():
            for target in targets:
                there = self._known.get(target)
                if there is None:
                    self._book.await_target(target, key)
                else:
                    rows.append((ns, there, key))
        waiting = self._book.awaited(self._came)
        for key, target in still_linked(
            tx, ns, [(key, target) for target, keys in waiting.items() for key in keys]
        ):
            rows.append((ns, self._came[target], key))
        tx.executemany(INSERT_LINK, rows)

    def _supersede(self, memory_id: str, key: int, older: tuple[str, ...]) -> None:
        """Mark the older ones that nothing supersedes yet: rows that were kept say it themselves."""
        free = self._tx.connection.scalars(
            sa.select(memories.c.memory_id).where(
                memories.c.ns == self._ns, memories.c.memory_id.in_(older), memories.c.superseded_by == ""
            )
        ).all()
        if free:
            supersede(self._tx, self._ns, memory_id, key, tuple(free), now_ns=self._now_ns)
