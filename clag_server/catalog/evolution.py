"""What the pipeline writes after placement, beside evolution (`evolving`): profiles, failed attempts, accesses."""

from __future__ import annotations

import time
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from clag_server.catalog.api import FailedTask
from clag_server.catalog.placements import forget_failures
from clag_server.catalog.plans import upsert_clusters
from clag_server.catalog.schema import ChangeKind, failures, memories
from clag_server.catalog.sums import Touched, settle
from clag_server.catalog.transaction import WriteTx
from clag_server.types.cluster import Cluster
from clag_server.types.memory import MemoryState

_UNFINISHED = (int(MemoryState.STORED), int(MemoryState.EMBEDDED), int(MemoryState.ROUTED))


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


def _quarantine(tx: WriteTx, ns: int, key: int, error: str) -> None:
    now_ns = time.time_ns()
    revision = tx.log_change(ns, ChangeKind.MEMORY_QUARANTINED, key, time_ns=now_ns)
    tx.connection.execute(
        sa.update(memories)
        .where(memories.c.ns == ns, memories.c.key == key)
        .values(state=int(MemoryState.QUARANTINED), error=error, revision=revision, update_time_ns=now_ns)
    )
    forget_failures(tx, [key])
