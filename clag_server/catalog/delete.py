"""Deleting a memory: everything that knows of it, in one transaction."""

from __future__ import annotations

import json

import sqlalchemy as sa

from clag_server.catalog import lexical
from clag_server.catalog.evolution import remove_links_to
from clag_server.catalog.placements import Placed, queue_ops
from clag_server.catalog.rows import to_json
from clag_server.catalog.schema import ChangeKind, clusters, memories, memory_history, namespaces
from clag_server.catalog.sums import Touched, settle
from clag_server.catalog.transaction import WriteTx
from clag_server.types.errors import EtagMismatch, NotFound


def delete(tx: WriteTx, ns: int, memory_id: str, *, etag: str, now_ns: int) -> int:
    """Delete a memory and return the revision (see `catalog.api.Catalog.delete`); an empty etag matches any.

    Its history is deleted too. A memory that it had superseded is no longer superseded.

    Raises:
        NotFound: there is no such memory.
        EtagMismatch: the memory changed since.
    """
    m = memories.c
    row = tx.connection.execute(
        sa.select(m.key, m.cluster, m.episode, m.placement_id, m.event_time_ns, m.revision).where(
            m.ns == ns, m.memory_id == memory_id
        )
    ).one_or_none()
    if row is None:
        raise NotFound("memory", memory_id)
    if etag and etag != str(row.revision):
        raise EtagMismatch(str(row.revision))
    remove_links_to(tx, ns, row.key, memory_id, now_ns=now_ns)
    _release_superseded(tx, ns, memory_id, now_ns=now_ns)
    tx.connection.execute(
        sa.delete(memory_history).where(memory_history.c.ns == ns, memory_history.c.key == row.key)
    )
    tx.connection.execute(sa.delete(memories).where(m.ns == ns, m.key == row.key))
    tx.connection.execute(
        sa.update(namespaces)
        .where(namespaces.c.ns == ns)
        .values(memories=namespaces.c.memories - 1, deleted=namespaces.c.deleted + 1)
    )
    if row.placement_id is not None:
        lexical.remove(tx, ns, [row.key])
        queue_ops(tx, ns, puts=[], deletes=[Placed(row.key, row.placement_id, row.cluster, row.event_time_ns)])
        settle(tx, ns, Touched({row.episode}, {row.cluster}, always=True))
        _forget_in_profiles(tx, ns, row.key, row.cluster, now_ns=now_ns)
    return tx.log_change(ns, ChangeKind.MEMORY_DELETED, row.key, time_ns=now_ns, memory_id=memory_id)


def _release_superseded(tx: WriteTx, ns: int, memory_id: str, *, now_ns: int) -> None:
    older = sa.and_(
        memories.c.ns == ns, memories.c.superseded_by == memory_id, sa.text("superseded_by <> ''")
    )  # the last term names the partial index
    for key in tx.connection.scalars(sa.select(memories.c.key).where(older)).all():
        revision = tx.log_change(ns, ChangeKind.MEMORY_SUPERSEDED, key, time_ns=now_ns)
        tx.connection.execute(
            sa.update(memories)
            .where(memories.c.ns == ns, memories.c.key == key)
            .values(superseded_by="", revision=revision, update_time_ns=now_ns)
        )


def _forget_in_profiles(tx: WriteTx, ns: int, key: int, home: int, *, now_ns: int) -> None:
    """Mark the home cluster's profile stale, and take the memory out of all representatives."""
    named = sa.func.json_each(clusters.c.representatives).table_valued("value")
    names_it = sa.exists(sa.select(1).select_from(named).where(named.c.value == key))
    rows = tx.connection.execute(
        sa.select(clusters.c.cluster, clusters.c.representatives).where(
            clusters.c.ns == ns, sa.or_(clusters.c.cluster == home, names_it)
        )
    ).all()
    for cluster, representatives in rows:
        kept = [other for other in json.loads(representatives) if other != key]
        revision = tx.log_change(ns, ChangeKind.CLUSTER_PUT, cluster, time_ns=now_ns)
        tx.connection.execute(
            sa.update(clusters)
            .where(clusters.c.ns == ns, clusters.c.cluster == cluster)
            .values(
                representatives=to_json(kept), profile_stale=sa.true(), revision=revision, update_time_ns=now_ns
            )
        )
