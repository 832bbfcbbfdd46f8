"""Reading memories, episodes and clusters. Every statement names the namespace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np
import sqlalchemy as sa

from clag_server.catalog import filters
from clag_server.catalog.api import EpisodeMembers, MatchingKeys, MemoryPage, Namespace
from clag_server.catalog.connections import driver_of
from clag_server.catalog.rows import (
    CLUSTER_COLUMNS,
    EPISODE_COLUMNS,
    MEMORY_COLUMNS,
    cluster_from_row,
    episode_from_row,
    memory_from_row,
    namespace_from_row,
)
from clag_server.catalog.schema import UNFINISHED_SQL, clusters, episodes, failures, memories, namespaces
from clag_server.types.cluster import Cluster, Episode
from clag_server.types.errors import NotFound
from clag_server.types.filters import Filter
from clag_server.types.memory import Memory, MemoryState

_CHUNK: Final = 10_000
"""Values of one IN list: SQLite builds allow 32,766 parameters."""

_PLACED: Final = memories.c.placement_id.is_not(None)

_MEMBERS: Final = "SELECT key, episode, session_position, speaker, embedding FROM memories WHERE ns = ?"
"""Plain SQL on the driver: a question reads a thousand of these rows, and Core took as long again as SQLite."""

_EPISODES: Final = (
    "SELECT vector_sum, episode, session_id, cluster, memory_count, first_position, last_position, open,"
    " last_time_ns FROM episodes WHERE ns = ? ORDER BY episode"
)

_MEMBERS_BY_KEY: Final = _MEMBERS.replace("FROM memories", "FROM memories INDEXED BY memories_key")
"""SQLite would go through all placements of the namespace: 15 ms for twenty keys among 100,000, for 0.1 ms."""


def get_namespace(connection: sa.Connection, name: str) -> Namespace:
    """Return a namespace by name or raise NotFound."""
    row = connection.execute(sa.select(namespaces).where(namespaces.c.name == name)).one_or_none()
    if row is None:
        raise NotFound("namespace", name)
    return namespace_from_row(row)


def list_namespaces(connection: sa.Connection) -> Sequence[Namespace]:
    """Return all namespaces by name."""
    return [
        namespace_from_row(row) for row in connection.execute(sa.select(namespaces).order_by(namespaces.c.name))
    ]


def dimension(connection: sa.Connection, ns: int) -> int:
    """Return the length of a namespace's vectors, 0 for one that does not exist."""
    return connection.scalar(sa.select(namespaces.c.embedder_dim).where(namespaces.c.ns == ns)) or 0


def memory(connection: sa.Connection, ns: int, memory_id: str, *, embedding: bool) -> Memory:
    """Return one memory by its id or raise NotFound."""
    row = connection.execute(
        _select(embedding).where(memories.c.ns == ns, memories.c.memory_id == memory_id)
    ).one_or_none()
    if row is None:
        raise NotFound("memory", memory_id)
    return memory_from_row(row)


def by_keys(connection: sa.Connection, ns: int, keys: Sequence[int], *, embeddings: bool) -> Sequence[Memory]:
    """Return those memories that exist, in the order asked."""
    found: dict[int, Sequence[Any]] = {}
    for some in _chunks(keys):
        statement = _select(embeddings).where(memories.c.ns == ns, memories.c.key.in_(some))
        found.update((row[0], row) for row in connection.execute(statement))
    return [memory_from_row(found[key]) for key in keys if key in found]


def page(
    connection: sa.Connection, ns: int, *, where: Filter | None, after: int, limit: int, embeddings: bool
) -> MemoryPage:
    """Return a page of memories by key."""
    statement = _select(embedding=embeddings).where(memories.c.ns == ns, memories.c.key > after)
    if where is not None:
        statement = statement.where(filters.condition(where))
    rows = connection.execute(statement.order_by(memories.c.key).limit(limit + 1)).all()
    items = [memory_from_row(row) for row in rows[:limit]]
    return MemoryPage(items, items[-1].key if len(rows) > limit and items else None)


def matching_keys(connection: sa.Connection, ns: int, where: Filter, *, limit: int) -> MatchingKeys:
    """Return embedded memories that match, by key."""
    rows = connection.execute(
        sa.select(memories.c.key, memories.c.episode)
        .where(memories.c.ns == ns, _PLACED, filters.condition(where))
        .order_by(memories.c.key)
        .limit(limit)
    ).all()
    return MatchingKeys(_integers(row.key for row in rows), _integers(row.episode for row in rows))


def count_matching(connection: sa.Connection, ns: int, where: Filter) -> tuple[int, int]:
    """Count the memories that match, in any state; returns the count and the largest key (0 for none)."""
    count, last = connection.execute(
        sa.select(sa.func.count(), sa.func.max(memories.c.key)).where(memories.c.ns == ns, filters.condition(where))
    ).one()
    return count, last or 0


def first_matching(
    connection: sa.Connection, ns: int, where: Filter, *, after: int, through: int, limit: int
) -> Sequence[int]:
    """Return the first keys, in any state, from above `after` up to `through`, of memories that match."""
    return connection.scalars(
        sa.select(memories.c.key)
        .where(memories.c.ns == ns, memories.c.key > after, memories.c.key <= through, filters.condition(where))
        .order_by(memories.c.key)
        .limit(limit)
    ).all()


def next_expiry(connection: sa.Connection) -> Mapping[int, int]:
    """Return the earliest expire time of each namespace that has any and is not being deleted."""
    earliest = (
        sa.select(sa.func.min(memories.c.expire_time_ns))
        .where(memories.c.ns == namespaces.c.ns, memories.c.expire_time_ns.is_not(None))
        .scalar_subquery()
    )
    rows = connection.execute(sa.select(namespaces.c.ns, earliest).where(sa.not_(namespaces.c.deleting)))
    return {ns: time_ns for ns, time_ns in rows if time_ns is not None}


def pending(connection: sa.Connection, ns: int, state: MemoryState, *, limit: int, now_ns: int) -> Sequence[Memory]:
    """Return memories that wait in `state` and are due, by key, with their embeddings."""
    later = sa.exists(
        sa.select(1).where(
            failures.c.key == memories.c.key,
            failures.c.state == memories.c.state,
            failures.c.not_before_ns > now_ns,
        )
    )
    rows = connection.execute(
        _select(embedding=True)
        .where(sa.text(UNFINISHED_SQL), memories.c.ns == ns, memories.c.state == int(state), sa.not_(later))
        .order_by(memories.c.key)
        .limit(limit)
    )
    return [memory_from_row(row) for row in rows]


def pending_keys(
    connection: sa.Connection, ns: int, states: Sequence[MemoryState], *, after: int, limit: int
) -> Sequence[int]:
    """Return the keys of memories that wait in any of the states, ascending; read from the index alone."""
    keys: list[int] = []
    for state in states:
        statement = (
            sa.select(memories.c.key)
            .where(
                sa.text(UNFINISHED_SQL), memories.c.ns == ns, memories.c.state == int(state), memories.c.key > after
            )
            .order_by(memories.c.key)
            .limit(limit)
        )
        keys.extend(connection.scalars(statement))
    return sorted(keys)[:limit]


def episode_members(connection: sa.Connection, ns: int, numbers: Sequence[int]) -> EpisodeMembers:
    """Return the members of episodes, by episode, then position in the session."""
    rows: list[Sequence[Any]] = []
    for some in _chunks(sorted(set(numbers))):
        sql = f"{_MEMBERS} AND episode IN ({_marks(some)}) ORDER BY episode, session_position, key"
        rows.extend(driver_of(connection).execute(sql, (ns, *some)))
    return _members(connection, ns, rows)


def members_of(connection: sa.Connection, ns: int, keys: Sequence[int]) -> EpisodeMembers:
    """Return the same for given memories, in the order asked."""
    found: dict[int, Sequence[Any]] = {}
    for some in _chunks(keys):
        sql = f"{_MEMBERS_BY_KEY} AND placement_id IS NOT NULL AND key IN ({_marks(some)})"
        found.update((row[0], row) for row in driver_of(connection).execute(sql, (ns, *some)))
    return _members(connection, ns, [found[key] for key in keys if key in found])


def keys_of_placements(connection: sa.Connection, ns: int, placement_ids: Sequence[int]) -> Mapping[int, int]:
    """Return the key of each current placement."""
    found: dict[int, int] = {}
    for some in _chunks(placement_ids):
        statement = sa.select(memories.c.placement_id, memories.c.key).where(
            memories.c.ns == ns, memories.c.placement_id.in_(some)
        )
        found.update((row[0], row[1]) for row in connection.execute(statement))
    return found


def list_clusters(connection: sa.Connection, ns: int, numbers: Sequence[int] | None) -> Sequence[Cluster]:
    """Return clusters by number, all or the given ones."""
    statement = sa.select(*CLUSTER_COLUMNS).where(clusters.c.ns == ns).order_by(clusters.c.cluster)
    return [cluster_from_row(row) for row in _numbered(connection, statement, clusters.c.cluster, numbers)]


def list_episodes(connection: sa.Connection, ns: int, numbers: Sequence[int] | None) -> Sequence[Episode]:
    """Return episodes by number, all or the given ones."""
    if numbers is None:
        return _all_episodes(connection, ns)
    statement = sa.select(*EPISODE_COLUMNS).where(episodes.c.ns == ns).order_by(episodes.c.episode)
    return [episode_from_row(row) for row in _numbered(connection, statement, episodes.c.episode, numbers)]


def _all_episodes(connection: sa.Connection, ns: int) -> Sequence[Episode]:
    """Return all episodes by number; their sums of vectors are rows of one matrix.

    A namespace is opened with them, so they come without Core, in a third of the time.
    """
    rows = driver_of(connection).execute(_EPISODES, (ns,)).fetchall()
    sums = np.frombuffer(b"".join([row[0] for row in rows]), dtype=np.float32)
    sums = sums.reshape(len(rows), -1) if rows else sums
    return [
        Episode(
            episode=row[1],
            session_id=row[2],
            cluster=row[3],
            vector_sum=vector_sum,
            memory_count=row[4],
            first_position=row[5],
            last_position=row[6],
            open=bool(row[7]),
            last_time_ns=row[8],
        )
        for row, vector_sum in zip(rows, sums, strict=True)
    ]


def _numbered(
    connection: sa.Connection,
    statement: sa.Select[*tuple[Any, ...]],
    column: sa.Column[Any],
    numbers: Sequence[int] | None,
) -> Iterator[sa.Row[*tuple[Any, ...]]]:
    if numbers is None:
        yield from connection.execute(statement)
        return
    for some in _chunks(sorted(set(numbers))):
        yield from connection.execute(statement.where(column.in_(some)))


def _select(embedding: bool) -> sa.Select[*tuple[Any, ...]]:
    return sa.select(*MEMORY_COLUMNS, memories.c.embedding) if embedding else sa.select(*MEMORY_COLUMNS)


def _marks(values: Sequence[int]) -> str:
    return ",".join("?" * len(values))


def _members(connection: sa.Connection, ns: int, rows: Sequence[Sequence[Any]]) -> EpisodeMembers:
    dim = len(rows[0][4]) // 4 if rows else dimension(connection, ns)
    return EpisodeMembers(
        keys=_integers(row[0] for row in rows),
        episodes=_integers(row[1] for row in rows),
        positions=_integers(row[2] for row in rows),
        vectors=np.frombuffer(b"".join(row[4] for row in rows), dtype=np.float32).reshape(len(rows), dim),
        speakers=np.array([row[3] for row in rows], dtype=np.object_),
    )


def _integers(values: Iterable[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.fromiter(values, dtype=np.int64)


def _chunks(values: Sequence[int]) -> Iterator[list[int]]:
    """Split keys into IN lists; plain integers, whatever kind of integer the caller has."""
    rest = iter(values)
    while some := [int(value) for value in islice(rest, _CHUNK)]:
        yield some
