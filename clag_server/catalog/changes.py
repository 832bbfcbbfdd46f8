"""Reading the change log in order, and forgetting its oldest part.

The log of a transaction is fine-grained (`schema.ChangeKind`); readers get the kinds of the contract. One revision
is one row, so a reader can stop and resume anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import sqlalchemy as sa

from clag_server.catalog.schema import ChangeKind as Logged
from clag_server.catalog.schema import changes, counters, memories
from clag_server.catalog.transaction import WriteTx
from clag_server.types.change import Change, ChangeBatch, ChangeKind
from clag_server.types.errors import LogCompacted

_KINDS: Final[Mapping[Logged, ChangeKind]] = {
    Logged.MEMORY_CREATED: ChangeKind.MEMORY_CREATED,
    Logged.MEMORY_PLACED: ChangeKind.MEMORY_MOVED,
    Logged.MEMORY_ROUTED: ChangeKind.MEMORY_UPDATED,
    Logged.MEMORY_EVOLVED: ChangeKind.MEMORY_EVOLVED,
    Logged.MEMORY_SUPERSEDED: ChangeKind.MEMORY_UPDATED,
    Logged.MEMORY_QUARANTINED: ChangeKind.MEMORY_UPDATED,
    Logged.MEMORY_DELETED: ChangeKind.MEMORY_DELETED,
    Logged.MEMORY_UPDATED: ChangeKind.MEMORY_UPDATED,
    Logged.CLUSTER_PUT: ChangeKind.CLUSTER_UPDATED,
    Logged.CLUSTER_REMOVED: ChangeKind.CLUSTER_REMOVED,
    Logged.CLUSTER_CREATED: ChangeKind.CLUSTER_CREATED,
}
_OF_CLUSTERS: Final = frozenset({Logged.CLUSTER_PUT, Logged.CLUSTER_REMOVED, Logged.CLUSTER_CREATED})


def read(connection: sa.Connection, *, after: int, limit: int) -> ChangeBatch:
    """Read changes of all namespaces (see `catalog.api_log.ChangeLog.changes`).

    `limit` (at least 1) bounds the rows that are looked at, and so the work. Changes of a memory of which nothing
    is left, not even its deletion, are left out.

    Raises:
        LogCompacted: rows after `after` are gone.
    """
    head, oldest = connection.execute(sa.select(counters.c.revision, counters.c.compacted_through)).one()
    if after < oldest:
        raise LogCompacted(asked=after, oldest=oldest)
    memory = sa.and_(memories.c.key == changes.c.key, changes.c.kind.not_in(sorted(_OF_CLUSTERS)))
    rows = connection.execute(
        sa.select(changes, memories.c.memory_id.label("living_id"), memories.c.cluster.label("home"))
        .join_from(changes, memories, memory, isouter=True)
        .where(changes.c.revision > after)
        .order_by(changes.c.revision)
        .limit(limit)
    ).all()
    deleted = _deleted_ids(connection, rows)
    found = [change for row in rows if (change := _change(row, deleted)) is not None]
    through = rows[-1].revision if len(rows) == limit else max(head, after)
    return ChangeBatch(found, through)


def oldest(connection: sa.Connection) -> int:
    """Return the smallest revision that `read` can resume after."""
    return connection.scalar(sa.select(counters.c.compacted_through)) or 0


def newest_to_compact(connection: sa.Connection, *, keep: int) -> int | None:
    """Return the revision of the newest row that is not among the newest `keep`, None when there is none.

    New rows only raise it, so it may be found in a read, before the write.
    """
    newest_first = sa.select(changes.c.revision).order_by(changes.c.revision.desc())
    return connection.scalar(newest_first.limit(1).offset(keep))


def compact(tx: WriteTx, *, through: int, before_ns: int, limit: int) -> int:
    """Forget up to `limit` of the oldest rows up to `through` that are older than `before_ns`.

    It stops at the first row that is younger. Clocks jump: where a younger time stands before an older one, more is
    kept than asked, never less.

    Returns:
        How many rows went.
    """
    rows = tx.connection.execute(
        sa.select(changes.c.revision, changes.c.time_ns)
        .where(changes.c.revision <= through)
        .order_by(changes.c.revision)
        .limit(limit)
    ).all()
    young = next((i for i, row in enumerate(rows) if row.time_ns >= before_ns), len(rows))
    if young == 0:
        return 0
    last = rows[young - 1].revision
    tx.connection.execute(sa.delete(changes).where(changes.c.revision <= last))
    tx.connection.execute(sa.update(counters).values(compacted_through=last))
    return young


def _deleted_ids(connection: sa.Connection, rows: Iterable[sa.Row[Any]]) -> Mapping[int, str]:
    """Return the ids of memories that are gone, which only the rows of their deletion have."""
    gone = {row.key for row in rows if row.kind not in _OF_CLUSTERS and row.living_id is None}
    if not gone:
        return {}
    found = connection.execute(
        sa.select(changes.c.key, changes.c.memory_id).where(
            changes.c.key.in_(sorted(gone)), changes.c.memory_id.is_not(None)
        )
    )
    return {row.key: row.memory_id for row in found}


def _change(row: sa.Row[Any], deleted: Mapping[int, str]) -> Change | None:
    logged = Logged(row.kind)
    if logged in _OF_CLUSTERS:
        return Change(row.revision, row.ns, _KINDS[logged], row.time_ns, cluster=row.key)
    memory_id = row.living_id or deleted.get(row.key)
    if memory_id is None:
        return None
    kind, old_cluster = _KINDS[logged], row.old_cluster
    if logged is Logged.MEMORY_PLACED and old_cluster is not None and old_cluster == row.cluster:
        kind, old_cluster = ChangeKind.MEMORY_UPDATED, None  # it was embedded again where it is
    cluster = row.cluster
    if cluster is None and logged is not Logged.MEMORY_CREATED:
        cluster = row.home
    return Change(row.revision, row.ns, kind, row.time_ns, row.key, memory_id, cluster, old_cluster)
