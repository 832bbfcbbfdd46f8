"""Where a memory is: giving out placements, and the outbox that tells the vector index.

A placement id names one memory in one partition and is never used again. The vector of a PUT is not copied: it is
the memory's, as long as the placement is the current one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from clag_server.catalog.api import IndexHead, IndexOp
from clag_server.catalog.connections import driver_of
from clag_server.catalog.rows import vector_from_blob
from clag_server.catalog.schema import failures, index_ops, memories, namespaces
from clag_server.catalog.transaction import WriteTx, compile_insert
from clag_server.types.digest import add, placements_digest, subtract

_INSERT_OP = compile_insert(index_ops)

_CLUSTERS_A_READ: Final = 10_000


@dataclass(frozen=True, slots=True)
class Placed:
    """A memory (key) in a partition, under a placement id."""

    key: int
    placement_id: int
    cluster: int
    event_time_ns: int


def queue_ops(tx: WriteTx, ns: int, *, puts: Sequence[Placed], deletes: Sequence[Placed]) -> None:
    """Append PUTs, then DELETEs to the outbox, and keep the namespace's count of placements."""
    if not puts and not deletes:
        return
    rows = [
        (ns, tx.next_outbox(), put, placed.placement_id, placed.cluster, placed.event_time_ns, placed.key)
        for put, group in ((True, puts), (False, deletes))
        for placed in group
    ]
    tx.executemany(_INSERT_OP, rows)
    tx.connection.execute(
        sa.update(namespaces)
        .where(namespaces.c.ns == ns)
        .values(
            outbox_head=rows[-1][1],
            placed=namespaces.c.placed + (len(puts) - len(deletes)),
            placed_digest=_changed_digest(tx, ns, puts, deletes),
        )
    )


def _changed_digest(tx: WriteTx, ns: int, puts: Sequence[Placed], deletes: Sequence[Placed]) -> int:
    """Return the namespace's digest after placements came and went."""
    before = tx.connection.scalar(sa.select(namespaces.c.placed_digest).where(namespaces.c.ns == ns)) or 0
    came, went = (
        placements_digest([p.placement_id for p in group], [p.cluster for p in group]) for group in (puts, deletes)
    )
    return subtract(add(before, came), went)


def forget_failures(tx: WriteTx, keys: Iterable[int]) -> None:
    """Forget failed attempts of memories that made progress."""
    rows = [{"failed": key} for key in keys]
    if rows and tx.connection.scalar(sa.select(sa.exists(sa.select(1).select_from(failures)))):
        tx.connection.execute(sa.delete(failures).where(failures.c.key == sa.bindparam("failed")), rows)


def read_index_ops(connection: sa.Connection, ns: int, *, after: int, limit: int) -> Sequence[IndexOp]:
    """Return the outbox in order (see `catalog.api.IndexFeed`)."""
    current = sa.and_(
        memories.c.key == index_ops.c.key,
        memories.c.ns == index_ops.c.ns,
        memories.c.placement_id == index_ops.c.placement_id,
        index_ops.c.put,
    )
    rows = connection.execute(
        sa.select(index_ops, memories.c.embedding)
        .join_from(index_ops, memories, current, isouter=True)
        .where(index_ops.c.ns == ns, index_ops.c.seq > after)
        .order_by(index_ops.c.seq)
        .limit(limit)
    )
    return [
        IndexOp(
            seq=row.seq,
            put=bool(row.put),
            placement_id=row.placement_id,
            cluster=row.cluster,
            event_time_ns=row.event_time_ns,
            vector=None if row.embedding is None else vector_from_blob(row.embedding),
        )
        for row in rows
    ]


def ack_index_ops(tx: WriteTx, ns: int, *, through: int) -> None:
    """Forget the outbox up to and with `through`."""
    tx.connection.execute(sa.delete(index_ops).where(index_ops.c.ns == ns, index_ops.c.seq <= through))


def current_placements(connection: sa.Connection, ns: int, *, after: int, limit: int) -> Sequence[IndexOp]:
    """Return a page of current placements by placement id, as PUTs."""
    rows = connection.execute(
        sa.select(memories.c.placement_id, memories.c.cluster, memories.c.event_time_ns, memories.c.embedding)
        .where(memories.c.ns == ns, memories.c.placement_id.is_not(None), memories.c.placement_id > after)
        .order_by(memories.c.placement_id)
        .limit(limit)
    )
    return [
        IndexOp(
            seq=row.placement_id,
            put=True,
            placement_id=row.placement_id,
            cluster=row.cluster,
            event_time_ns=row.event_time_ns,
            vector=vector_from_blob(row.embedding),
        )
        for row in rows
    ]


def placements_in(connection: sa.Connection, ns: int, numbers: Sequence[int]) -> Sequence[IndexOp]:
    """Return the current placements of some clusters, as PUTs."""
    found: list[IndexOp] = []
    driver = driver_of(connection)
    for start in range(0, len(numbers), _CLUSTERS_A_READ):
        some = numbers[start : start + _CLUSTERS_A_READ]
        marks = ", ".join("?" * len(some))
        # Plain SQL on the driver: a question reads thousands of these rows while the index loads.
        sql = (
            "SELECT placement_id, cluster, event_time_ns, embedding FROM memories INDEXED BY memories_cluster"  # noqa: S608
            f" WHERE ns = ? AND cluster IS NOT NULL AND cluster IN ({marks}) AND placement_id IS NOT NULL"
        )
        found.extend(
            IndexOp(
                seq=placement_id,
                put=True,
                placement_id=placement_id,
                cluster=cluster,
                event_time_ns=event_time_ns,
                vector=vector_from_blob(embedding),
            )
            for placement_id, cluster, event_time_ns, embedding in driver.execute(sql, (ns, *some))
        )
    return found


def index_head(connection: sa.Connection, ns: int) -> IndexHead:
    """Return the newest outbox step ever written, and the number and digest of current placements."""
    row = connection.execute(
        sa.select(namespaces.c.outbox_head, namespaces.c.placed, namespaces.c.placed_digest).where(
            namespaces.c.ns == ns
        )
    ).one_or_none()
    return IndexHead(*row) if row is not None else IndexHead(0, 0, 0)
