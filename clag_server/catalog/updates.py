"""Updating a memory on a client's word: its own fields, with history of what they were.

History names fields as `clag.v1.Memory` does and keeps what the columns held (lists, attributes: their JSON text;
times: nanoseconds; "cluster": the number), except for an embedding, whose numbers nobody reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from clag_server.catalog import lexical as words
from clag_server.catalog import reads, store
from clag_server.catalog.api_edits import Updated
from clag_server.catalog.namespaces import require_live
from clag_server.catalog.placements import Placed, forget_failures, queue_ops
from clag_server.catalog.relinking import OwnLinks, Rewritten, drop_links_to, drop_own_links
from clag_server.catalog.rows import attributes_to_json, strings_from_json, strings_to_json, to_json, vector_to_blob
from clag_server.catalog.schema import ChangeKind, memories, memory_history
from clag_server.catalog.sums import Touched, settle
from clag_server.catalog.traces import forget_in_profiles, release_rows
from clag_server.catalog.transaction import WriteTx, compile_insert
from clag_server.types.change import HistoryCause
from clag_server.types.errors import EtagMismatch, FieldViolation, InvalidField, NotFound
from clag_server.types.memory import MemoryState, NewMemory

_INSERT_HISTORY: Final = compile_insert(memory_history)

_COLUMNS: Final[Mapping[str, Callable[[NewMemory], Any]]] = {
    "text": lambda after: after.text,
    "kind": lambda after: int(after.kind),
    "task": lambda after: after.task,
    "speaker": lambda after: after.speaker,
    "session_id": lambda after: after.session_id,
    "tags": lambda after: strings_to_json(after.tags),
    "attributes": lambda after: attributes_to_json(after.attributes),
    "importance": lambda after: after.importance,
    "event_time_ns": lambda after: after.event_time_ns,
    "expire_time_ns": lambda after: after.expire_time_ns,
    "supersedes": lambda after: strings_to_json(after.supersedes),
}
"""Fields of `NewMemory` that are columns of the same name, with what the column holds."""

_EMBEDDING: Final = "embedding"
_INDEXED: Final = frozenset({"text", "speaker", "event_time_ns"})
"""What the server's own embedding is made of (`memory.index_text`)."""

_PLACE: Final = _INDEXED | {"session_id", _EMBEDDING}
"""What a memory's place rests on."""

_HISTORY_NAMES: Final = {"event_time_ns": "event_time", "expire_time_ns": "expire_time"}


@dataclass(frozen=True, slots=True)
class _Change:
    """What an update does to a row: new values of columns that differ, and the field names they go by."""

    fields: frozenset[str]
    values: dict[str, Any]

    @property
    def replaces(self) -> bool:
        """Whether the memory loses its place."""
        return bool(self.fields & _PLACE)


def update(
    tx: WriteTx,
    ns: int,
    memory_id: str,
    after: NewMemory,
    *,
    fields: frozenset[str],
    lexical: str | None,
    etag: str,
    now_ns: int,
) -> Updated:
    """Give a memory new values (see `catalog.api_edits.CatalogEdits.update`); the same values change nothing.

    Raises:
        NamespaceDeleted: the namespace is being deleted, or was.
        NotFound: there is no such memory.
        EtagMismatch: the memory changed since.
        InvalidField: a value cannot be stored.
        ValueError: a field is not one that an update can change.
    """
    dim = require_live(tx, ns).dim
    row = tx.connection.execute(
        sa.select(memories).where(memories.c.ns == ns, memories.c.memory_id == memory_id)
    ).one_or_none()
    if row is None:
        raise NotFound("memory", memory_id)
    if etag and etag != str(row.revision):
        raise EtagMismatch(str(row.revision))
    _check(after, fields, dim)
    change = _difference(row, after, fields)
    if change.fields:
        revision = tx.log_change(ns, ChangeKind.MEMORY_UPDATED, row.key, time_ns=now_ns, cluster=row.cluster)
        rewritten = _rewritten(row, change, after)
        own = None if rewritten is None else drop_own_links(tx, ns, rewritten)
        _write(tx, ns, row, change, own, revision=revision, now_ns=now_ns)
        if change.replaces:
            _leave_place(tx, ns, row, now_ns=now_ns)
        if rewritten is not None:
            drop_links_to(tx, ns, rewritten, now_ns=now_ns)
        if "supersedes" in change.fields:
            _supersede(tx, ns, row, after.supersedes, now_ns=now_ns)
    if lexical is not None and not change.replaces and row.placement_id is not None:
        words.remove(tx, ns, [row.key])
        words.add(tx, ns, [(row.key, lexical)])
    memory = reads.memory(tx.connection, ns, memory_id, embedding=False)
    return Updated(memory, tx.revision, replaced=change.replaces, episode=row.episode, cluster=row.cluster)


def _check(after: NewMemory, fields: frozenset[str], dim: int) -> None:
    """Refuse what cannot be stored, naming the field as a create does."""
    if unknown := fields - _COLUMNS.keys() - {_EMBEDDING}:
        raise ValueError(f"an update cannot change {sorted(unknown)}")
    if after.embedding is not None and after.embedding.shape != (dim,):
        wrong = f"has shape {after.embedding.shape}, the namespace holds {dim} dimensions"
        raise InvalidField(FieldViolation("memory.embedding", wrong))
    if after.importance is not None and not math.isfinite(after.importance):
        raise InvalidField(FieldViolation("memory.importance", "is not finite"))
    try:
        attributes_to_json(after.attributes)
    except ValueError as error:
        raise InvalidField(FieldViolation("memory.attributes", str(error))) from error


def _difference(row: sa.Row[*tuple[Any, ...]], after: NewMemory, fields: frozenset[str]) -> _Change:
    before = row._asdict()
    values = {name: _COLUMNS[name](after) for name in sorted(fields & _COLUMNS.keys())}
    if values.get("event_time_ns", 0) is None:  # no time given: it happened when it was stored
        values["event_time_ns"] = row.create_time_ns
    values = {name: value for name, value in values.items() if value != before[name]}
    changed = set(values)
    embedding = _embedding(row, after, fields, changed)
    asked = _EMBEDDING in fields and (after.embedding is not None or row.client_embedding)
    if asked and embedding != (row.embedding, row.client_embedding):
        changed.add(_EMBEDDING)
    if changed & _PLACE:
        values["embedding"], values["client_embedding"] = embedding
    return _Change(frozenset(changed), values)


def _embedding(
    row: sa.Row[*tuple[Any, ...]], after: NewMemory, fields: frozenset[str], changed: set[str]
) -> tuple[bytes | None, bool]:
    """Return the embedding that the memory goes on with (None: it is to be embedded), and whether a client gave it.

    A client's stays as long as the text does. One in `after` that is not among the fields is the server's.
    """
    given = None if after.embedding is None else vector_to_blob(after.embedding)
    if _EMBEDDING in fields and (given is not None or row.client_embedding):
        return given, given is not None
    if row.client_embedding and "text" not in changed:
        return row.embedding, True
    if changed & _INDEXED:
        return given, False
    return row.embedding, False


def _rewritten(row: sa.Row[*tuple[Any, ...]], change: _Change, after: NewMemory) -> Rewritten | None:
    """Return what its links are to be held to; None when the update can make none of them false."""
    superseding = "supersedes" in change.fields
    if not change.replaces and not superseding:
        return None
    supersedes = after.supersedes if superseding else tuple(strings_from_json(row.supersedes))
    return Rewritten(row.key, row.memory_id, row.links, supersedes, change.replaces)


def _write(
    tx: WriteTx,
    ns: int,
    row: sa.Row[*tuple[Any, ...]],
    change: _Change,
    own_links: OwnLinks | None,
    *,
    revision: int,
    now_ns: int,
) -> None:
    """Write the columns and the history entry; `own_links` when some went."""
    values = dict(change.values)
    before = row._asdict()
    old = {_HISTORY_NAMES.get(name, name): before[name] for name in sorted(change.fields - {_EMBEDDING})}
    if _EMBEDDING in change.fields:
        old[_EMBEDDING] = "changed"
    if change.replaces:
        values |= {"state": int(MemoryState.STORED), "error": "", "routing": None}
        values |= {"cluster": None, "episode": None, "placement_id": None}
        if row.cluster is not None:
            old["cluster"] = row.cluster  # where it comes to be is for its next placement to say
    if own_links is not None:
        values |= own_links.values
        old |= own_links.old
    if "session_id" in change.fields:
        values["session_position"] = store.take_position(tx, ns, values["session_id"])
    here = None if change.replaces else row.cluster
    entry = (revision, ns, row.key, row.key, now_ns, to_json(old), HistoryCause.CLIENT, "", here)
    tx.executemany(_INSERT_HISTORY, [entry])
    tx.connection.execute(
        sa.update(memories)
        .where(memories.c.ns == ns, memories.c.key == row.key)
        .values(**values, revision=revision, update_time_ns=now_ns)
    )


def _leave_place(tx: WriteTx, ns: int, row: sa.Row[*tuple[Any, ...]], *, now_ns: int) -> None:
    """Take a memory whose row has no place any more out of what knew its place."""
    forget_failures(tx, [row.key])
    if row.placement_id is None:
        return
    words.remove(tx, ns, [row.key])
    queue_ops(tx, ns, puts=[], deletes=[Placed(row.key, row.placement_id, row.cluster, row.event_time_ns)])
    settle(tx, ns, Touched({row.episode}, {row.cluster}, always=True))
    forget_in_profiles(tx, ns, [row.key], [row.cluster], now_ns=now_ns)


def _supersede(
    tx: WriteTx, ns: int, row: sa.Row[*tuple[Any, ...]], supersedes: tuple[str, ...], *, now_ns: int
) -> None:
    """Mark what the memory supersedes now, and release what it no longer does."""
    before = strings_from_json(row.supersedes)
    dropped = [memory_id for memory_id in before if memory_id not in supersedes]
    m = memories.c
    released = tx.connection.execute(
        sa.select(m.key, m.superseded_by, m.cluster)
        .where(m.ns == ns, m.memory_id.in_(dropped), m.superseded_by == row.memory_id)
        .order_by(m.key)
    ).all()
    release_rows(tx, ns, [(r[0], r[1], r[2], row.key) for r in released], HistoryCause.CLIENT, now_ns)
    added = tuple(memory_id for memory_id in supersedes if memory_id not in before)
    store.supersede(tx, ns, row.memory_id, row.key, added, now_ns=now_ns)
