"""Ingest streams: the watermark below which everything is durable, and the epoch that fences an older opener."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from clag_server.catalog.namespaces import require_live
from clag_server.catalog.schema import ingest_streams as table
from clag_server.catalog.transaction import WriteTx
from clag_server.types.errors import NotFound, SequenceGap, StreamFenced
from clag_server.types.ingest import StreamPosition, StreamRef

FIRST_SEQ = 1
"""Sequence numbers of a stream begin here."""

# Plain SQL where Core's building of a statement would cost more than running it: this is once per batch.
_READ = "SELECT epoch, next_seq, created, duplicates, rejected FROM ingest_streams WHERE ns = ? AND stream_id = ?"
_ADVANCE = (
    "UPDATE ingest_streams SET next_seq = next_seq + ?, created = created + ?, duplicates = duplicates + ?,"
    " rejected = rejected + ? WHERE ns = ? AND stream_id = ?"
)


def open_stream(tx: WriteTx, ns: int, stream_id: str) -> StreamPosition:
    """Open or resume a stream under a new epoch. Raises NamespaceDeleted, NotFound."""
    require_live(tx, ns)
    tx.connection.execute(
        insert(table)
        .values(ns=ns, stream_id=stream_id, epoch=1, next_seq=FIRST_SEQ, created=0, duplicates=0, rejected=0)
        .on_conflict_do_update(index_elements=["ns", "stream_id"], set_={"epoch": table.c.epoch + 1})
    )
    return _position(tx.connection, ns, stream_id)


def check(connection: sa.Connection, ns: int, ref: StreamRef, *, first_seq: int) -> int:
    """Return how many items from `first_seq` on are below the watermark.

    Raises:
        NotFound: the stream was never opened.
        StreamFenced: a newer opener took it over.
        SequenceGap: `first_seq` is beyond the watermark.
    """
    position = _current(connection, ns, ref)
    if first_seq > position.next_seq:
        raise SequenceGap(expected=position.next_seq, got=first_seq)
    return position.next_seq - first_seq


def advance(tx: WriteTx, ns: int, ref: StreamRef, *, created: int, duplicates: int, rejected: int) -> None:
    """Move the watermark past items with these outcomes."""
    taken = created + duplicates + rejected
    tx.connection.exec_driver_sql(_ADVANCE, (taken, created, duplicates, rejected, ns, ref.stream_id))


def finish_stream(connection: sa.Connection, ns: int, ref: StreamRef, *, last_seq: int) -> StreamPosition:
    """Return the final counts of a stream that ends at `last_seq`.

    Raises:
        NotFound: the stream was never opened.
        StreamFenced: a newer opener took it over.
        SequenceGap: the watermark is elsewhere.
    """
    position = _current(connection, ns, ref)
    if position.next_seq != last_seq + 1:
        raise SequenceGap(expected=position.next_seq, got=last_seq + 1)
    return position


def _current(connection: sa.Connection, ns: int, ref: StreamRef) -> StreamPosition:
    position = _position(connection, ns, ref.stream_id)
    if position.ref.epoch != ref.epoch:
        raise StreamFenced(ref.stream_id)
    return position


def _position(connection: sa.Connection, ns: int, stream_id: str) -> StreamPosition:
    row = connection.exec_driver_sql(_READ, (ns, stream_id)).one_or_none()
    if row is None:
        raise NotFound("stream", stream_id)
    return StreamPosition(
        ref=StreamRef(stream_id, row.epoch),
        next_seq=row.next_seq,
        created=row.created,
        duplicates=row.duplicates,
        rejected=row.rejected,
    )
