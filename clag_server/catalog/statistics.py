"""Counts; of the memories' rows at most one a state is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from clag_server.catalog.api import NamespaceStats, Waiting
from clag_server.catalog.schema import (
    UNFINISHED_SQL,
    clusters,
    counters,
    episodes,
    failures,
    index_ops,
    memories,
    namespaces,
)
from clag_server.types.cluster import ClusterState
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
    clusters_by_state = dict(_grouped(connection, clusters.c.state, clusters.c.ns == ns))
    episodes_by_openness = dict(_grouped(connection, episodes.c.open, episodes.c.ns == ns))
    everywhere = connection.scalar(sa.select(sa.func.sum(namespaces.c.memories))) or 0
    return NamespaceStats(
        by_state=by_state,
        waiting=_waiting(connection, ns),
        clusters=clusters_by_state.get(ClusterState.ACTIVE, 0),
        archived_clusters=clusters_by_state.get(ClusterState.ARCHIVED, 0),
        episodes=sum(episodes_by_openness.values()),
        open_episodes=episodes_by_openness.get(True, 0),
        placed=row.placed,
        index_backlog=_count(connection, index_ops, ns),
        created=row.created,
        duplicates=row.duplicates,
        rejected=row.rejected,
        deleted=row.deleted,
        share=row.memories / everywhere if everywhere else 0.0,
        revision=revision(connection),
    )


def _waiting(connection: sa.Connection, ns: int) -> Mapping[MemoryState, Waiting]:
    """Return since when the oldest memory of each state waits, and what failed there."""
    failed = connection.execute(
        # SQLite takes `error` from the row of the maximum.
        sa.select(failures.c.state, sa.func.count(), sa.func.max(failures.c.not_before_ns), failures.c.error)
        .join(memories, memories.c.key == failures.c.key)
        .where(memories.c.ns == ns, memories.c.state == failures.c.state)
        .group_by(failures.c.state)
    )
    by_state = {state: (retrying, error) for state, retrying, _, error in failed}
    found: dict[MemoryState, Waiting] = {}
    for state in _WAITING:
        oldest = connection.scalar(
            sa.select(memories.c.update_time_ns)
            .where(sa.text(UNFINISHED_SQL), memories.c.ns == ns, memories.c.state == int(state))
            .order_by(memories.c.key)
            .limit(1)
        )
        retrying, error = by_state.get(int(state), (0, ""))
        found[state] = Waiting(retrying, oldest, error)
    return found


def _grouped(
    connection: sa.Connection, column: sa.Column[Any], where: sa.ColumnElement[bool]
) -> Iterable[tuple[Any, int]]:
    counted = connection.execute(sa.select(column, sa.func.count()).where(where).group_by(column))
    return [(value, number) for value, number in counted]


def _unfinished() -> sa.Select[tuple[int, int, int]]:
    return (
        sa.select(memories.c.ns, memories.c.state, sa.func.count().label("waiting"))
        .where(sa.text(UNFINISHED_SQL))
        .group_by(memories.c.ns, memories.c.state)
    )


def _count(connection: sa.Connection, table: sa.Table, ns: int) -> int:
    return connection.scalar(sa.select(sa.func.count()).select_from(table).where(table.c.ns == ns)) or 0
