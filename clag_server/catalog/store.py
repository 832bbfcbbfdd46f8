"""Storing: one batch of items becomes rows, change log, counts and watermark in one transaction.

This is the contract path. An item costs one row of `memories` and one of `changes`; everything else is per batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from clag_server.catalog import streams
from clag_server.catalog.ids import IdMaker
from clag_server.catalog.namespaces import Live, require_live
from clag_server.catalog.rows import NO_ITEMS, attributes_to_json, strings_to_json, to_json, vector_to_blob
from clag_server.catalog.schema import ChangeKind, memories, memory_history
from clag_server.catalog.transaction import ChangeRow, WriteTx, compile_insert
from clag_server.types.change import HistoryCause
from clag_server.types.ingest import AppendResult, Disposition, IngestItem, Rejection, StoredItem, StreamRef
from clag_server.types.memory import AnnotationSource, MemoryState, NewMemory

_INSERT_MEMORY: Final = compile_insert(memories)
_INSERT_HISTORY: Final = compile_insert(memory_history)
# Plain SQL where Core's building of a statement would cost more than running it.
_READ_POSITION: Final = "SELECT next_position FROM sessions WHERE ns = ? AND session_id = ?"
_SAVE_POSITION: Final = (
    "INSERT INTO sessions (ns, session_id, next_position) VALUES (?, ?, ?)"
    " ON CONFLICT (ns, session_id) DO UPDATE SET next_position = excluded.next_position"
)
_COUNT: Final = (
    "UPDATE namespaces SET created = created + ?, duplicates = duplicates + ?, rejected = rejected + ?,"
    " memories = memories + ? WHERE ns = ?"
)
_NEW: Final = int(MemoryState.STORED)
_NO_ANNOTATION: Final = int(AnnotationSource.NONE)

_new_id = IdMaker()


@dataclass(slots=True)
class _Batch:
    """What a batch adds: rows to insert, and what became of each item."""

    rows: list[tuple[Any, ...]]
    outcomes: list[StoredItem]
    changes: list[ChangeRow]
    known: dict[str, int]
    positions: dict[str, int]
    superseding: list[tuple[str, int, tuple[str, ...]]]


def append(
    tx: WriteTx, ns: int, items: Sequence[IngestItem], *, first_seq: int, stream: StreamRef | None, now_ns: int
) -> AppendResult:
    """Store items and move the stream's watermark (see `catalog.api.Catalog.append`).

    Raises:
        NamespaceDeleted: the namespace is being deleted, or was.
        NotFound: there is no such namespace, or no such stream.
        StreamFenced: a newer opener took the stream over.
        SequenceGap: `first_seq` is beyond the watermark.
    """
    live = require_live(tx, ns)
    skip = streams.check(tx.connection, ns, stream, first_seq=first_seq) if stream is not None else 0
    repeated, fresh = items[:skip], items[skip:]
    known = _known_ids(tx, ns, [item.memory_id for item in items if isinstance(item, NewMemory) and item.memory_id])
    batch = _Batch([], _repeated(repeated, known, first_seq), [], known, _positions(tx, ns, fresh), [])
    already = len(batch.outcomes)
    for seq, item in enumerate(fresh, start=first_seq + skip):
        batch.outcomes.append(_take(tx, ns, batch, item, seq=seq, live=live, now_ns=now_ns))
    tx.executemany(_INSERT_MEMORY, batch.rows)
    tx.log_changes(batch.changes)
    tx.executemany(
        _SAVE_POSITION, [(ns, session_id, following) for session_id, following in batch.positions.items()]
    )
    for memory_id, key, older in batch.superseding:
        supersede(tx, ns, memory_id, key, older, now_ns=now_ns)
    _count(tx, ns, stream, batch.outcomes[already:])
    return AppendResult(items=batch.outcomes, revision=tx.revision)


def supersede(tx: WriteTx, ns: int, memory_id: str, key: int, older: tuple[str, ...], *, now_ns: int) -> None:
    """Mark memories as superseded by a newer one, with history; ids that do not exist are ignored."""
    wanted = [other for other in older if other != memory_id]
    rows = tx.connection.execute(
        sa.select(memories.c.key, memories.c.superseded_by)
        .where(memories.c.ns == ns, memories.c.memory_id.in_(wanted))
        .order_by(memories.c.key)
    ).all()
    for other, before in rows:
        revision = tx.log_change(ns, ChangeKind.MEMORY_SUPERSEDED, other, time_ns=now_ns)
        old = to_json({"superseded_by": before})
        tx.executemany(_INSERT_HISTORY, [(revision, ns, other, key, now_ns, old, HistoryCause.CONFLICT, "", None)])
        tx.connection.execute(
            sa.update(memories)
            .where(memories.c.ns == ns, memories.c.key == other)
            .values(superseded_by=memory_id, revision=revision, update_time_ns=now_ns)
        )


def take_position(tx: WriteTx, ns: int, session_id: str) -> int:
    """Return the next position of a session and use it up."""
    row = tx.connection.exec_driver_sql(_READ_POSITION, (ns, session_id)).one_or_none()
    position = 0 if row is None else int(row[0])
    tx.executemany(_SAVE_POSITION, [(ns, session_id, position + 1)])
    return position


def _take(
    tx: WriteTx, ns: int, batch: _Batch, item: IngestItem, *, seq: int, live: Live, now_ns: int
) -> StoredItem:
    """Decide what becomes of one item, and add its row when it is new."""
    if isinstance(item, Rejection):
        return StoredItem(seq, Disposition.REJECTED, "", None, item)
    existing = batch.known.get(item.memory_id) if item.memory_id else None
    if existing is not None:
        return StoredItem(seq, Disposition.DUPLICATE, item.memory_id, existing, None)
    attributes = _storable(item, live.dim)
    if isinstance(attributes, Rejection):
        return StoredItem(seq, Disposition.REJECTED, item.memory_id, None, attributes)
    memory_id = item.memory_id or _new_id()
    key, revision = tx.next_key(), tx.next_revision()
    position = batch.positions[item.session_id]
    batch.positions[item.session_id] = position + 1
    batch.known[memory_id] = key
    embedding = item.embedding
    expire_time_ns = item.expire_time_ns
    if expire_time_ns is None and live.time_to_live_ns is not None:
        expire_time_ns = now_ns + live.time_to_live_ns
    # In the order of the columns of `memories`; a test reads every field back.
    row = (
        key, ns, memory_id, _NEW, item.text, int(item.kind), item.task, item.speaker, item.session_id, position,
        strings_to_json(item.tags), attributes, item.importance, 1.0,
        now_ns if item.event_time_ns is None else item.event_time_ns, now_ns, now_ns, expire_time_ns,
        "", NO_ITEMS, NO_ITEMS, _NO_ANNOTATION, NO_ITEMS, None, None, None, None,
        strings_to_json(item.supersedes), "", 0, None, revision, "", embedding is not None,
        None if embedding is None else vector_to_blob(embedding),
    )  # fmt: skip
    batch.rows.append(row)
    batch.changes.append((revision, ns, ChangeKind.MEMORY_CREATED, key, None, now_ns, None, None))
    if item.supersedes:
        batch.superseding.append((memory_id, key, item.supersedes))
    return StoredItem(seq, Disposition.CREATED, memory_id, key, None)


def _storable(item: NewMemory, dim: int) -> str | Rejection:
    """Return the text of the attributes, or why the item cannot be stored.

    What the edge let through must not spoil the rest of a batch.
    """
    if item.embedding is not None and item.embedding.shape != (dim,):
        return Rejection("embedding", f"has shape {item.embedding.shape}, the namespace holds {dim} dimensions")
    if item.importance is not None and not math.isfinite(item.importance):
        return Rejection("importance", "is not finite")
    try:
        return attributes_to_json(item.attributes)
    except ValueError as error:
        return Rejection("attributes", str(error))


def _known_ids(tx: WriteTx, ns: int, memory_ids: Sequence[str]) -> dict[str, int]:
    """Return the keys of those ids that exist."""
    if not memory_ids:
        return {}
    marks = ",".join("?" * len(memory_ids))
    sql = f"SELECT memory_id, key FROM memories WHERE ns = ? AND memory_id IN ({marks})"  # noqa: S608 (marks only)
    return {row[0]: row[1] for row in tx.connection.exec_driver_sql(sql, (ns, *memory_ids))}


def _repeated(items: Sequence[IngestItem], known: dict[str, int], first_seq: int) -> list[StoredItem]:
    """Return outcomes of items below the watermark, where the memory can be told by its id."""
    return [
        StoredItem(seq, Disposition.DUPLICATE, item.memory_id, known[item.memory_id], None)
        for seq, item in enumerate(items, start=first_seq)
        if isinstance(item, NewMemory) and item.memory_id in known
    ]


def _positions(tx: WriteTx, ns: int, items: Sequence[IngestItem]) -> dict[str, int]:
    """Return the next position in each session of the items; a session's first memory has position 0."""
    positions = dict.fromkeys((item.session_id for item in items if isinstance(item, NewMemory)), 0)
    for session_id in positions:
        row = tx.connection.exec_driver_sql(_READ_POSITION, (ns, session_id)).one_or_none()
        if row is not None:
            positions[session_id] = row[0]
    return positions


def _count(tx: WriteTx, ns: int, stream: StreamRef | None, outcomes: Sequence[StoredItem]) -> None:
    """Count outcomes for the namespace and for the stream, whose watermark moves past them."""
    kinds = [outcome.disposition for outcome in outcomes]
    created, duplicates = kinds.count(Disposition.CREATED), kinds.count(Disposition.DUPLICATE)
    rejected = len(kinds) - created - duplicates
    if not kinds:
        return
    tx.connection.exec_driver_sql(_COUNT, (created, duplicates, rejected, created, ns))
    if stream is not None:
        streams.advance(tx, ns, stream, created=created, duplicates=duplicates, rejected=rejected)
