"""Deleting memories: everything that knows of them, in one transaction for a batch.

What a batch touched (episodes, clusters, profiles, the namespace's counts) is brought up to date once, however many
memories went.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from clag_server.catalog import filters, lexical
from clag_server.catalog.api_edits import DeletedBatch
from clag_server.catalog.namespaces import require_live
from clag_server.catalog.placements import Placed, queue_ops
from clag_server.catalog.schema import ChangeKind, memories, memory_history, namespaces
from clag_server.catalog.sums import Touched, settle
from clag_server.catalog.traces import chunks, forget_in_profiles, release_superseded
from clag_server.catalog.transaction import ChangeRow, WriteTx
from clag_server.catalog.unlinking import remove_links_to
from clag_server.types.change import HistoryCause
from clag_server.types.errors import EtagMismatch, NotFound
from clag_server.types.filters import Filter


@dataclass(frozen=True, slots=True)
class _Doomed:
    """A memory that goes, and where it is (all None for one without a place)."""

    key: int
    memory_id: str
    cluster: int | None
    episode: int | None
    placement_id: int | None
    event_time_ns: int
    revision: int


_m = memories.c
_DOOMED = sa.select(_m.key, _m.memory_id, _m.cluster, _m.episode, _m.placement_id, _m.event_time_ns, _m.revision)


def delete(tx: WriteTx, ns: int, memory_id: str, *, etag: str, now_ns: int) -> int:
    """Delete a memory and return the revision (see `catalog.api.Catalog.delete`); an empty etag matches any.

    Raises:
        NamespaceDeleted: the namespace is being deleted, or was.
        NotFound: there is no such memory.
        EtagMismatch: the memory changed since.
    """
    require_live(tx, ns)
    found = _select(tx, ns, _m.memory_id == memory_id)
    if not found:
        raise NotFound("memory", memory_id)
    if etag and etag != str(found[0].revision):
        raise EtagMismatch(str(found[0].revision))
    return _delete(tx, ns, found, now_ns=now_ns).revision


def delete_still_matching(tx: WriteTx, ns: int, keys: Sequence[int], where: Filter, *, now_ns: int) -> DeletedBatch:
    """Delete those of the memories that match now: they were found before this transaction began."""
    require_live(tx, ns)
    condition = filters.condition(where)
    found = [row for some in chunks(keys) for row in _select(tx, ns, sa.and_(_m.key.in_(some), condition))]
    return _delete(tx, ns, found, now_ns=now_ns)


def delete_expired(tx: WriteTx, ns: int, *, now_ns: int, limit: int) -> DeletedBatch:
    """Delete up to `limit` memories whose expire time has come, those first that expired first."""
    require_live(tx, ns)
    due = sa.and_(_m.expire_time_ns.is_not(None), _m.expire_time_ns <= now_ns)
    return _delete(tx, ns, _select(tx, ns, due, first=_m.expire_time_ns, limit=limit), now_ns=now_ns)


def _select(
    tx: WriteTx,
    ns: int,
    where: sa.ColumnElement[bool],
    *,
    first: sa.Column[int] | None = None,
    limit: int | None = None,
) -> list[_Doomed]:
    order = (_m.key,) if first is None else (first, _m.key)
    rows = tx.connection.execute(_DOOMED.where(_m.ns == ns, where).order_by(*order).limit(limit))
    return [_Doomed(*row) for row in rows]


def _delete(tx: WriteTx, ns: int, doomed: Sequence[_Doomed], *, now_ns: int) -> DeletedBatch:
    if not doomed:
        return DeletedBatch((), (), frozenset(), frozenset(), tx.revision)
    gone = {memory.memory_id: memory.key for memory in doomed}
    episodes = {memory.episode for memory in doomed if memory.episode is not None}
    homes = {memory.cluster for memory in doomed if memory.cluster is not None}
    remove_links_to(tx, ns, gone, now_ns=now_ns)
    release_superseded(tx, ns, gone, cause=HistoryCause.DELETION, now_ns=now_ns)
    for some in chunks(gone.values()):
        history = memory_history.c
        tx.connection.execute(sa.delete(memory_history).where(history.ns == ns, history.key.in_(some)))
        tx.connection.execute(sa.delete(memories).where(_m.ns == ns, _m.key.in_(some)))  # failures go with them
    _count(tx, ns, len(doomed))
    _unplace(tx, ns, doomed)
    settle(tx, ns, Touched(set(episodes), set(homes), always=True))
    forget_in_profiles(tx, ns, gone.values(), homes, now_ns=now_ns)
    rows: list[ChangeRow] = [
        (tx.next_revision(), ns, ChangeKind.MEMORY_DELETED, m.key, m.memory_id, now_ns, m.cluster, None)
        for m in doomed
    ]
    tx.log_changes(rows)
    return DeletedBatch(
        keys=tuple(gone.values()),
        memory_ids=tuple(gone),
        episodes=frozenset(episodes),
        clusters=frozenset(homes),
        revision=tx.revision,
    )


def _count(tx: WriteTx, ns: int, gone: int) -> None:
    tx.connection.execute(
        sa.update(namespaces)
        .where(namespaces.c.ns == ns)
        .values(memories=namespaces.c.memories - gone, deleted=namespaces.c.deleted + gone)
    )


def _unplace(tx: WriteTx, ns: int, doomed: Sequence[_Doomed]) -> None:
    placed = [
        Placed(m.key, m.placement_id, m.cluster, m.event_time_ns)
        for m in doomed
        if m.placement_id is not None and m.cluster is not None
    ]
    lexical.remove(tx, ns, [memory.key for memory in placed])
    queue_ops(tx, ns, puts=[], deletes=placed)
