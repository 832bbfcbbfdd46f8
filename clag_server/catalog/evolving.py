"""Localized evolution of many memories in one transaction: rows are read once, changed here, and written once.

Every change keeps its own revision and its own entry in the history, in order, as if it were written alone: three
statements for a batch in place of six for a change made evolution 7 times as fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import sqlalchemy as sa

from clag_server.catalog.api import Evolution
from clag_server.catalog.placements import forget_failures
from clag_server.catalog.rows import links_from_json, links_to_json, strings_to_json, to_json
from clag_server.catalog.schema import ChangeKind, memories, memory_history
from clag_server.catalog.traces import INSERT_LINK, chunks
from clag_server.catalog.transaction import ChangeRow, WriteTx, compile_insert
from clag_server.types.change import HistoryCause
from clag_server.types.memory import CONTRADICTED, Link, LinkKind

_INSERT_HISTORY: Final = compile_insert(memory_history)
_SAVED: Final = (
    "context",
    "keywords",
    "evolved_tags",
    "links",
    "confidence",
    "superseded_by",
    "annotated_by",
    "state",
)
_SAVE: Final = (
    f"UPDATE memories SET {', '.join(f'{name} = ?' for name in _SAVED)}, revision = ?, update_time_ns = ?"  # noqa: S608
    " WHERE ns = ? AND key = ?"
)
_READ: Final = f"SELECT key, cluster, event_time_ns, {', '.join(_SAVED)} FROM memories"  # noqa: S608


@dataclass(slots=True)
class _Row:
    """A memory while it changes: `values` are those of `_SAVED`; `links` are the parsed ones, once needed."""

    key: int
    cluster: int | None
    event_time_ns: int
    values: dict[str, Any]
    links: dict[tuple[str, int], Link] | None = None
    revision: int | None = None


@dataclass(frozen=True, slots=True)
class _Target:
    """A memory that is linked to or supersedes."""

    key: int
    event_time_ns: int


@dataclass(slots=True)
class _Batch:
    """What a batch reads at its beginning, and what it will write."""

    ns: int
    now_ns: int
    rows: dict[int, _Row]
    targets: dict[str, _Target]
    changes: list[ChangeRow] = field(default_factory=list)
    history: list[tuple[Any, ...]] = field(default_factory=list)
    linked: list[tuple[int, int, int]] = field(default_factory=list)
    advanced: list[int] = field(default_factory=list)


def evolve(tx: WriteTx, ns: int, changes: Sequence[Evolution], *, now_ns: int) -> int:
    """Apply changes in order and return the revision (see `catalog.api.Catalog.evolve`)."""
    named = {link.memory_id for change in changes for link in change.add_links}
    named |= {change.superseded_by for change in changes if change.superseded_by}
    batch = _Batch(ns, now_ns, _rows(tx, ns, {change.key for change in changes}), _targets(tx, ns, named))
    for change in changes:
        row = batch.rows.get(change.key)
        if row is not None and row.cluster == change.cluster:
            _apply(tx, batch, row, change)
    _write(tx, batch)
    return tx.revision


def _rows(tx: WriteTx, ns: int, keys: Iterable[int]) -> dict[int, _Row]:
    found: dict[int, _Row] = {}
    for some in chunks(sorted(keys)):
        marks = ", ".join("?" * len(some))
        rows = tx.connection.exec_driver_sql(f"{_READ} WHERE ns = ? AND key IN ({marks})", (ns, *some))
        for key, cluster, event_time_ns, *values in rows:
            found[key] = _Row(key, cluster, event_time_ns, dict(zip(_SAVED, values, strict=True)))
    return found


def _targets(tx: WriteTx, ns: int, ids: Iterable[str]) -> dict[str, _Target]:
    m = memories.c
    found: dict[str, _Target] = {}
    for some in chunks(sorted(ids)):
        rows = tx.connection.execute(
            sa.select(m.memory_id, m.key, m.event_time_ns).where(m.ns == ns, m.memory_id.in_(some))
        )
        found.update((memory_id, _Target(key, time_ns)) for memory_id, key, time_ns in rows)
    return found


def _apply(tx: WriteTx, batch: _Batch, row: _Row, change: Evolution) -> None:
    wanted: dict[str, Any] = {
        "context": change.context,
        "keywords": None if change.keywords is None else strings_to_json(change.keywords),
        "evolved_tags": None if change.evolved_tags is None else strings_to_json(change.evolved_tags),
        "confidence": change.confidence,
        "superseded_by": _still_there(batch, change.superseded_by),
        "annotated_by": None if change.annotated_by is None else int(change.annotated_by),
        "state": None if change.state is None else int(change.state),
    }
    if change.add_links:
        wanted |= _add_links(batch, row, change)
    before = row.values
    new = {name: value for name, value in wanted.items() if value is not None and value != before[name]}
    if not new:
        return
    old = {name: before[name] for name in new if name != "state"}
    row.revision = tx.next_revision()
    kind = ChangeKind.MEMORY_EVOLVED if old else ChangeKind.MEMORY_UPDATED  # its state advanced, nothing else
    batch.changes.append((row.revision, batch.ns, kind, row.key, None, batch.now_ns, change.cluster, None))
    if old:
        conflict = "superseded_by" in old or "confidence" in old
        reason = HistoryCause.CONFLICT if conflict else HistoryCause.EVOLUTION
        batch.history.append(
            (row.revision, batch.ns, row.key, change.cause, batch.now_ns, to_json(old), reason, change.model,
             change.cluster)
        )  # fmt: skip
    if "state" in new:
        batch.advanced.append(row.key)
    row.values = before | new


def _add_links(batch: _Batch, row: _Row, change: Evolution) -> dict[str, Any]:
    """Return the links with the new ones added, and the confidence that is left, where there is anything to add.

    A link to a memory that is gone or to itself is left out; one of the same target and kind is replaced. A newer
    memory that contradicts takes its share of the confidence, once.
    """
    if row.links is None:
        row.links = {(link.memory_id, link.kind): link for link in links_from_json(row.values["links"])}
    confidence = row.values["confidence"] if change.confidence is None else change.confidence
    for link in change.add_links:
        target = batch.targets.get(link.memory_id)
        if target is None or target.key == row.key:
            continue
        newer = (target.event_time_ns, target.key) > (row.event_time_ns, row.key)
        if link.kind is LinkKind.CONTRADICTS and newer and (link.memory_id, link.kind) not in row.links:
            confidence *= CONTRADICTED
        row.links[link.memory_id, link.kind] = link
        batch.linked.append((batch.ns, target.key, row.key))
    return {"links": links_to_json(list(row.links.values())), "confidence": confidence}


def _still_there(batch: _Batch, memory_id: str | None) -> str | None:
    """Return the id, or None when that memory was deleted since the change was thought of; "" names none."""
    return memory_id if not memory_id or memory_id in batch.targets else None


def _write(tx: WriteTx, batch: _Batch) -> None:
    tx.log_changes(batch.changes)
    tx.executemany(_INSERT_HISTORY, batch.history)
    tx.executemany(INSERT_LINK, batch.linked)
    if batch.advanced:
        forget_failures(tx, batch.advanced)
    tx.executemany(
        _SAVE,
        [
            (*(row.values[name] for name in _SAVED), row.revision, batch.now_ns, batch.ns, row.key)
            for row in batch.rows.values()
            if row.revision is not None
        ],
    )
