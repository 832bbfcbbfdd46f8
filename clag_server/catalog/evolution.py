"""What the pipeline writes after placement: evolution with history, profiles, failed attempts, accesses."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from clag_server.catalog.api import Evolution, FailedTask
from clag_server.catalog.placements import forget_failures
from clag_server.catalog.plans import upsert_clusters
from clag_server.catalog.rows import links_from_json, links_to_json, strings_to_json, to_json
from clag_server.catalog.schema import ChangeKind, failures, memories, memory_history
from clag_server.catalog.sums import Touched, settle
from clag_server.catalog.transaction import WriteTx, compile_insert
from clag_server.types.change import HistoryCause
from clag_server.types.cluster import Cluster
from clag_server.types.memory import Link, MemoryState

_INSERT_HISTORY = compile_insert(memory_history)
_UNFINISHED = (int(MemoryState.STORED), int(MemoryState.EMBEDDED), int(MemoryState.ROUTED))


def evolve(tx: WriteTx, ns: int, changes: Sequence[Evolution], *, now_ns: int) -> int:
    """Apply changes in order and return the revision (see `catalog.api.Catalog.evolve`)."""
    for change in changes:
        _evolve_one(tx, ns, change, now_ns=now_ns)
    return tx.revision


def put_clusters(tx: WriteTx, ns: int, items: Sequence[Cluster]) -> int:
    """Write clusters whole and return the revision; their counts stay true to their memories."""
    upsert_clusters(tx, ns, items)
    settle(tx, ns, Touched(clusters={cluster.cluster for cluster in items}))
    return tx.revision


def record_failure(
    tx: WriteTx, ns: int, keys: Sequence[int], *, error: str, max_attempts: int, not_before_ns: int
) -> Sequence[FailedTask]:
    """Count a failed attempt of each memory that still waits (see `catalog.api.Catalog.record_failure`)."""
    rows = tx.connection.execute(
        sa.select(memories.c.key, memories.c.state, failures.c.state.label("failed_in"), failures.c.attempts)
        .join_from(memories, failures, failures.c.key == memories.c.key, isouter=True)
        .where(
            memories.c.ns == ns, memories.c.key.in_([int(key) for key in keys]), memories.c.state.in_(_UNFINISHED)
        )
        .order_by(memories.c.key)
    ).all()
    tasks = []
    for row in rows:
        attempts = 1 + (row.attempts if row.failed_in == row.state else 0)
        task = FailedTask(row.key, attempts, quarantined=attempts >= max_attempts)
        tasks.append(task)
        if task.quarantined:
            _quarantine(tx, ns, row.key, error)
        else:
            values = {"state": row.state, "attempts": attempts, "not_before_ns": not_before_ns, "error": error}
            upsert = insert(failures).values(key=row.key, **values)
            tx.connection.execute(upsert.on_conflict_do_update(index_elements=["key"], set_=values))
    return tasks


def touch(tx: WriteTx, ns: int, keys: Sequence[int], *, now_ns: int) -> None:
    """Count an access of each memory."""
    tx.executemany(
        "UPDATE memories SET access_count = access_count + 1, last_access_time_ns = ? WHERE ns = ? AND key = ?",
        [(now_ns, ns, int(key)) for key in keys],
    )


def _evolve_one(tx: WriteTx, ns: int, change: Evolution, *, now_ns: int) -> None:
    m = memories.c
    row = tx.connection.execute(
        sa.select(
            m.context, m.keywords, m.evolved_tags, m.links, m.confidence, m.superseded_by, m.annotated_by, m.state
        ).where(m.ns == ns, m.key == change.key, m.cluster == change.cluster)
    ).one_or_none()
    if row is None:
        return
    wanted: dict[str, Any] = {
        "context": change.context,
        "keywords": None if change.keywords is None else strings_to_json(change.keywords),
        "evolved_tags": None if change.evolved_tags is None else strings_to_json(change.evolved_tags),
        "links": _add_links(tx, ns, change, row.links),
        "confidence": change.confidence,
        "superseded_by": _still_there(tx, ns, change.superseded_by),
        "annotated_by": None if change.annotated_by is None else int(change.annotated_by),
        "state": None if change.state is None else int(change.state),
    }
    before = row._asdict()
    new = {name: value for name, value in wanted.items() if value is not None and value != before[name]}
    if not new:
        return
    old = {name: before[name] for name in new if name != "state"}
    kind = ChangeKind.MEMORY_EVOLVED if old else ChangeKind.MEMORY_UPDATED  # its state advanced, nothing else
    revision = tx.log_change(ns, kind, change.key, time_ns=now_ns, cluster=change.cluster)
    if old:
        reason = HistoryCause.CONFLICT if "superseded_by" in old else HistoryCause.EVOLUTION
        entry = (revision, ns, change.key, change.cause, now_ns, to_json(old), reason, change.model, change.cluster)
        tx.executemany(_INSERT_HISTORY, [entry])
    if "state" in new:
        forget_failures(tx, [change.key])
    tx.connection.execute(
        sa.update(memories)
        .where(m.ns == ns, m.key == change.key)
        .values(**new, revision=revision, update_time_ns=now_ns)
    )


def _add_links(tx: WriteTx, ns: int, change: Evolution, before: str) -> str | None:
    """Return the links with the new ones added, None when there is nothing to add.

    A link to a memory that is gone or to itself is left out; one of the same target and kind is replaced.
    """
    if not change.add_links:
        return None
    wanted = {link.memory_id for link in change.add_links}
    targets: dict[str, int] = {
        row.memory_id: row.key
        for row in tx.connection.execute(
            sa.select(memories.c.memory_id, memories.c.key).where(
                memories.c.ns == ns, memories.c.memory_id.in_(sorted(wanted)), memories.c.key != change.key
            )
        )
    }
    links: dict[tuple[str, int], Link] = {(link.memory_id, link.kind): link for link in links_from_json(before)}
    links.update({(n.memory_id, n.kind): n for n in change.add_links if n.memory_id in targets})
    tx.executemany(
        "INSERT OR IGNORE INTO link_targets (ns, target, source) VALUES (?, ?, ?)",
        [(ns, target, change.key) for target in targets.values()],
    )
    return links_to_json(list(links.values()))


def _still_there(tx: WriteTx, ns: int, memory_id: str | None) -> str | None:
    """Return the id, or None when that memory was deleted since the change was thought of; "" names none."""
    if not memory_id:
        return memory_id
    return tx.connection.scalar(
        sa.select(memories.c.memory_id).where(memories.c.ns == ns, memories.c.memory_id == memory_id)
    )


def _quarantine(tx: WriteTx, ns: int, key: int, error: str) -> None:
    now_ns = time.time_ns()
    revision = tx.log_change(ns, ChangeKind.MEMORY_QUARANTINED, key, time_ns=now_ns)
    tx.connection.execute(
        sa.update(memories)
        .where(memories.c.ns == ns, memories.c.key == key)
        .values(state=int(MemoryState.QUARANTINED), error=error, revision=revision, update_time_ns=now_ns)
    )
    forget_failures(tx, [key])
