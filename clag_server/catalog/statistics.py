"""Counts, none of which reads a memory's row."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from clag_server.catalog.api import NamespaceStats
from clag_server.catalog.schema import UNFINISHED_SQL, clusters, counters, episodes, index_ops, memories, namespaces
from clag_server.types.errors import NotFound
from clag_server.types.memory import MemoryState

_WAITING = (MemoryState.STORED, MemoryState.EMBEDDED, MemoryState.ROUTED)


def revision(connection: sa.Connection) -> int:
    """Return the newest committed revision."""
    return connection.scalar(sa.select(counters.c.revision)) or 0


def backlog(connection: sa.Connection) -> Mapping[int, Mapping[MemoryState, int]]:
    """Return how many memories wait, by namespace and state; namespaces where none waits are absent."""
    waiting: dict[int, dict[MemoryState, int]] = {}
    for row in connection.execute(_unfinished()):
        state = MemoryState(row.state)
        if state in _WAITING:
            waiting.setdefault(row.ns, {})[state] = row.waiting
    return waiting


def stats(connection: sa.Connection, ns: int) -> NamespaceStats:
    """Return a namespace's counters or raise NotFound."""
    row = connection.execute(sa.select(namespaces).where(namespaces.c.ns == ns)).one_or_none()
    if row is None:
        raise NotFound("namespace", str(ns))
    by_state = dict.fromkeys(MemoryState, 0)
    for group in connection.execute(_unfinished().where(memories.c.ns == ns)):
        by_state[MemoryState(group.state)] = group.waiting
    # All others are finished: they have no place in the index of unfinished ones.
    by_state[MemoryState.EVOLVED] = row.memories - sum(by_state.values())
    return NamespaceStats(
        by_state=by_state,
        clusters=_count(connection, clusters, ns),
        episodes=_count(connection, episodes, ns),
        index_backlog=_count(connection, index_ops, ns),
        created=row.created,
        duplicates=row.duplicates,
        rejected=row.rejected,
        revision=revision(connection),
    )


def _unfinished() -> sa.Select[tuple[int, int, int]]:
    return (
        sa.select(memories.c.ns, memories.c.state, sa.func.count().label("waiting"))
        .where(sa.text(UNFINISHED_SQL))
        .group_by(memories.c.ns, memories.c.state)
    )


def _count(connection: sa.Connection, table: sa.Table, ns: int) -> int:
    return connection.scalar(sa.select(sa.func.count()).select_from(table).where(table.c.ns == ns)) or 0
