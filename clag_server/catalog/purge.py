"""Taking a deleted namespace out of every table, a bounded number of rows at a time.

The row of the namespace goes last, with its full-text index: until then a restart finds the namespace marked and
goes on. Operations stay: they tell what happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa

from clag_server.catalog import lexical
from clag_server.catalog.schema import (
    changes,
    cluster_history,
    clusters,
    create_requests,
    edit_requests,
    episodes,
    import_numbers,
    index_ops,
    ingest_streams,
    link_targets,
    memories,
    memory_history,
    namespaces,
    sessions,
)
from clag_server.catalog.transaction import WriteTx

_BY_NAMESPACE: Final[tuple[sa.Table, ...]] = (
    create_requests,
    edit_requests,
    index_ops,
    memories,  # failures go with them
    link_targets,
    memory_history,
    episodes,
    clusters,
    cluster_history,
    sessions,
    ingest_streams,
    import_numbers,
)
"""Tables that find a namespace's rows by an index; the change log has none, see `changes_of`."""


def purge_rows(tx: WriteTx, ns: int, *, limit: int) -> int:
    """Remove up to `limit` rows of a marked namespace, the change log and its own row excepted.

    Returns:
        How many went.

    Raises:
        ValueError: the namespace is not marked as being deleted.
    """
    deleting = tx.connection.scalar(sa.select(namespaces.c.deleting).where(namespaces.c.ns == ns))
    if deleting is None:
        return 0
    if not deleting:
        raise ValueError(f"namespace {ns} is not marked as being deleted")
    gone = 0
    for table in _BY_NAMESPACE:
        if gone == limit:
            break
        identity = sa.tuple_(*table.primary_key.columns)
        some = sa.select(*table.primary_key.columns).where(table.c.ns == ns).limit(limit - gone)
        gone += tx.connection.execute(sa.delete(table).where(identity.in_(some))).rowcount
    return gone


def changes_of(connection: sa.Connection, ns: int, *, limit: int) -> Sequence[int]:
    """Return the first revisions, at most `limit`, of a namespace's changes, reading past those of others."""
    return connection.scalars(
        sa.select(changes.c.revision).where(changes.c.ns == ns).order_by(changes.c.revision).limit(limit)
    ).all()


def purge_changes(tx: WriteTx, ns: int, revisions: Sequence[int]) -> int:
    """Remove rows of the change log; returns how many are gone (compaction may have been faster)."""
    tx.executemany("DELETE FROM changes WHERE revision = ? AND ns = ?", [(revision, ns) for revision in revisions])
    return len(revisions)


def purge_last(tx: WriteTx, ns: int, *, limit: int) -> int:
    """Remove what is left: the full-text index and the row of the namespace, when nothing else is there.

    Returns:
        How many rows went; 0 for a namespace that is gone.
    """
    gone = purge_rows(tx, ns, limit=limit)
    if gone:
        return gone
    marked = sa.and_(namespaces.c.ns == ns, namespaces.c.deleting)
    removed = tx.connection.execute(sa.delete(namespaces).where(marked)).rowcount
    if removed:
        lexical.drop_index(tx, ns)
    return removed
