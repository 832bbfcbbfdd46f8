"""Single creates, made safe to repeat by the caller's request id."""

from __future__ import annotations

import hashlib
from typing import Final

import sqlalchemy as sa

from clag_server.catalog import store
from clag_server.catalog.namespaces import require_live
from clag_server.catalog.rows import to_json
from clag_server.catalog.schema import create_requests as table
from clag_server.catalog.schema import memories
from clag_server.catalog.transaction import WriteTx
from clag_server.types.errors import FieldViolation, InvalidField, RequestIdReused
from clag_server.types.ingest import AppendResult, Disposition, StoredItem
from clag_server.types.memory import NewMemory

KEEP_NS: Final = 24 * 3600 * 10**9
"""How long a request id is remembered, in nanoseconds."""

_SEQ: Final = 1
"""Sequence number of the only item of a create."""


def create(tx: WriteTx, ns: int, memory: NewMemory, *, request_id: str, now_ns: int) -> AppendResult:
    """Store one memory (see `catalog.api.Catalog.create`); an empty `request_id` is never a repetition.

    The repetition of a create whose memory was deleted since is a DUPLICATE without a key: it brings nothing back.

    Raises:
        NamespaceDeleted: the namespace is being deleted, or was.
        RequestIdReused: the request id came with another memory.
        InvalidField: the memory cannot be stored.
    """
    if not request_id:
        return _create(tx, ns, memory, now_ns=now_ns)
    require_live(tx, ns)
    tx.connection.execute(sa.delete(table).where(table.c.time_ns < now_ns - KEEP_NS))
    digest = _digest(memory)
    before = tx.connection.execute(
        sa.select(table.c.digest, table.c.memory_id, memories.c.key)
        .join_from(table, memories, memories.c.key == table.c.key, isouter=True)
        .where(table.c.ns == ns, table.c.request_id == request_id)
    ).one_or_none()
    if before is not None:
        if before.digest != digest:
            raise RequestIdReused(request_id)
        outcome = StoredItem(_SEQ, Disposition.DUPLICATE, before.memory_id, before.key, None)
        return AppendResult(items=[outcome], revision=tx.revision)
    result = _create(tx, ns, memory, now_ns=now_ns)
    stored = result.items[0]
    tx.connection.execute(
        sa.insert(table).values(
            ns=ns,
            request_id=request_id,
            digest=digest,
            memory_id=stored.memory_id,
            key=stored.key,
            time_ns=now_ns,
        )
    )
    return result


def _create(tx: WriteTx, ns: int, memory: NewMemory, *, now_ns: int) -> AppendResult:
    result = store.append(tx, ns, [memory], first_seq=_SEQ, stream=None, now_ns=now_ns)
    rejection = result.items[0].rejection
    if rejection is not None:
        raise InvalidField(FieldViolation(f"memory.{rejection.field}", rejection.description))
    return result


def _digest(memory: NewMemory) -> bytes:
    """Return a hash of everything the caller sent (SHA-256)."""
    embedding = b"" if memory.embedding is None else memory.embedding.tobytes()
    fields = [
        memory.text,
        memory.memory_id,
        int(memory.kind),
        memory.task,
        memory.speaker,
        memory.session_id,
        list(memory.tags),
        sorted((key, repr(value)) for key, value in memory.attributes.items()),
        repr(memory.importance),
        memory.event_time_ns,
        memory.expire_time_ns,
        list(memory.supersedes),
    ]
    return hashlib.sha256(to_json(fields).encode() + b"\0" + embedding).digest()
