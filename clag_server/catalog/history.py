"""The history of one memory, as a reader sees it.

Rows hold only what a change replaced. What a field became is its value before the next younger change of it, or
the memory's own today; so each value is stored once. The oldest entry, the memory's creation, has no row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa

from clag_server.catalog.rows import links_from_json, to_json
from clag_server.catalog.schema import ChangeKind, changes, counters, memories, memory_history
from clag_server.types.change import FieldChange, HistoryCause, HistoryEntry, HistoryPage
from clag_server.types.errors import NotFound
from clag_server.types.memory import AnnotationSource, MemoryKind

_NS_PER_S: Final = 10**9


def read(connection: sa.Connection, ns: int, memory_id: str, *, before: int | None, limit: int) -> HistoryPage:
    """Return a page of a memory's history, newest first (see `catalog.api_log.ChangeLog.memory_history`).

    Raises:
        NotFound: there is no such memory.
    """
    m = memories.c
    memory = connection.execute(
        sa.select(m.key, m.create_time_ns, m.revision).where(m.ns == ns, m.memory_id == memory_id)
    ).one_or_none()
    if memory is None:
        raise NotFound("memory", memory_id)
    rows = _rows(connection, ns, memory.key, before=before, limit=limit + 1)
    entries = _entries(connection, ns, memory.key, rows[:limit], before=before)
    if len(rows) >= limit:  # the creation needs a place too
        return HistoryPage(entries, rows[limit - 1].revision)
    oldest = rows[-1].revision if rows else memory.revision if before is None else min(before, memory.revision)
    revision = _creation_revision(connection, memory.key, not_after=oldest)
    entries.append(HistoryEntry(revision, HistoryCause.CLIENT, "", memory.create_time_ns, ()))
    return HistoryPage(entries, None)


def _rows(connection: sa.Connection, ns: int, key: int, *, before: int | None, limit: int) -> list[sa.Row[Any]]:
    h = memory_history.c
    cause = memories.alias("cause")
    another = sa.and_(cause.c.key == h.cause, h.cause != h.key)
    statement = (
        sa.select(memory_history, cause.c.memory_id.label("cause_id"))
        .join_from(memory_history, cause, another, isouter=True)
        .where(h.ns == ns, h.key == key)
        .order_by(h.revision.desc())
        .limit(limit)
    )
    if before is not None:
        statement = statement.where(h.revision < before)
    return list(connection.execute(statement))


def _entries(
    connection: sa.Connection, ns: int, key: int, rows: list[sa.Row[Any]], *, before: int | None
) -> list[HistoryEntry]:
    """Return the entries of rows, newest first."""
    replaced = [{_field(name): value for name, value in json.loads(row.old).items()} for row in rows]
    after = _values_after(connection, ns, key, {field for old in replaced for field in old}, before=before)
    entries = []
    for row, old in zip(rows, replaced, strict=True):
        if _CLUSTER in old and row.cluster is not None:
            # A move says itself where it went; what lost its place says where it was.
            after[_CLUSTER] = None if row.cluster == old[_CLUSTER] else row.cluster
        entries.append(
            HistoryEntry(
                revision=row.revision,
                cause=HistoryCause(row.reason),
                cause_memory_id=row.cause_id or "",
                time_ns=row.time_ns,
                changes=tuple(
                    FieldChange(field.name, field.text(value), field.text(after[field]))
                    for field, value in old.items()
                ),
                model=row.model,
                cluster=row.cluster,
            )
        )
        after.update(old)
    return entries


@dataclass(frozen=True, slots=True)
class _Field:
    """A field: its name in `clag.v1.Memory`, its column ("" for none), and how a value becomes JSON ("": unset)."""

    name: str
    column: str
    text: Callable[[Any], str]


def _values_after(
    connection: sa.Connection, ns: int, key: int, fields: Iterable[_Field], *, before: int | None
) -> dict[_Field, Any]:
    """Return the values that fields had when the changes before the revision `before` (None: all) were done."""
    h = memory_history.c
    values: dict[_Field, Any] = {}
    for field in fields:
        if before is not None:
            has_it = sa.or_(*(sa.func.json_type(h.old, f'$."{name}"').is_not(None) for name in _names(field)))
            younger = connection.scalar(
                sa.select(h.old)
                .where(h.ns == ns, h.key == key, h.revision >= before, has_it)
                .order_by(h.revision)
                .limit(1)
            )
            if younger is not None:
                old = json.loads(younger)
                values[field] = next(old[name] for name in _names(field) if name in old)
                continue
        column = memories.c.get(field.column)
        here = sa.and_(memories.c.ns == ns, memories.c.key == key)
        values[field] = None if column is None else connection.scalar(sa.select(column).where(here))
    return values


def _creation_revision(connection: sa.Connection, key: int, *, not_after: int) -> int:
    """Return the revision under which a memory was created, 0 when the log no longer has it.

    Keys and revisions of creations ascend together, so it is found by bisection: the log has no index by key.
    """
    low = 1 + (connection.scalar(sa.select(counters.c.compacted_through)) or 0)
    high = not_after
    while low <= high:
        middle = (low + high) // 2
        row = connection.execute(
            sa.select(changes.c.revision, changes.c.key)
            .where(changes.c.revision.between(middle, high), changes.c.kind == int(ChangeKind.MEMORY_CREATED))
            .order_by(changes.c.revision)
            .limit(1)
        ).one_or_none()
        if row is not None and row.key == key:
            return int(row.revision)
        if row is not None and row.key < key:
            low = row.revision + 1
        else:
            high = middle - 1
    return 0


# --- values to JSON texts
def _plain(value: Any) -> str:
    """Return the JSON text of a value; "" for what stands for unset (null, an empty text or list)."""
    return "" if value is None or value in ("", [], {}) else to_json(value)


def _collection(value: Any) -> str:
    """Return the text of a list or an object, which columns hold as JSON already."""
    return _plain(json.loads(value) if isinstance(value, str) else value)


def _links(value: Any) -> str:
    links = links_from_json(value if isinstance(value, str) else to_json(value or []))
    return _plain(
        [
            {
                "memory_id": link.memory_id,
                "kind": f"LINK_KIND_{link.kind.name}",
                "reason": link.reason,
                "similarity": link.similarity,
            }
            for link in links
        ]
    )


def _kind(value: Any) -> str:
    return _plain(f"MEMORY_KIND_{MemoryKind(value).name}" if value else None)


def _annotated_by(value: Any) -> str:
    return _plain(f"ANNOTATION_SOURCE_{AnnotationSource(value).name}" if value else None)


def _cluster(value: Any) -> str:
    return _plain(None if value is None else f"c{value}")


def _time(value: Any) -> str:
    """Return a time in nanoseconds as RFC 3339 text, UTC."""
    if not isinstance(value, int):
        return _plain(value)
    seconds, rest = divmod(value, _NS_PER_S)
    day = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{rest:09}".rstrip("0") if rest else ""
    return _plain(f"{day}{fraction}Z")


def _nothing(_: Any) -> str:
    """Return the text of a vector: that it changed is history, its numbers are not kept."""
    return ""


_CLUSTER: Final = _Field("cluster_id", "cluster", _cluster)

_FIELDS: Final = (
    *(_Field(name, name, _plain) for name in ("text", "task", "speaker", "session_id", "session_position")),
    *(_Field(name, name, _plain) for name in ("importance", "confidence", "context", "superseded_by")),
    *(_Field(name, name, _collection) for name in ("tags", "keywords", "evolved_tags", "supersedes", "attributes")),
    _Field("event_time", "event_time_ns", _time),
    _Field("expire_time", "expire_time_ns", _time),
    _Field("kind", "kind", _kind),
    _Field("annotated_by", "annotated_by", _annotated_by),
    _Field("links", "links", _links),
    _Field("embedding", "", _nothing),
    _CLUSTER,
)
_BY_NAME: Final[Mapping[str, _Field]] = {name: field for field in _FIELDS for name in (field.column, field.name)}


def _field(name: str) -> _Field:
    """Return the field that a row names, by its column or by its name in the contract."""
    return _BY_NAME.get(name) or _Field(name, "", _plain)


def _names(field: _Field) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in (field.name, field.column) if name))
