"""Clusters and episodes that an import makes, and the last step of an import."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from clag_server.catalog import import_book as book
from clag_server.catalog import streams
from clag_server.catalog.import_book import ImportBook
from clag_server.catalog.namespaces import require_live
from clag_server.catalog.plans import upsert_clusters
from clag_server.catalog.rows import episode_to_values, links_from_json, links_to_json, to_json
from clag_server.catalog.schema import ChangeKind, clusters, episodes, memories, namespaces
from clag_server.catalog.traces import INSERT_LINK, chunks
from clag_server.catalog.transaction import WriteTx
from clag_server.types.cluster import Cluster, ClusterField, Episode
from clag_server.types.ingest import StreamPosition, StreamRef
from clag_server.types.memory import AnnotationSource
from clag_server.types.transfer import ImportedCluster, ImportResult, ReservedPlace

_EVERY_FIELD: Final = frozenset(ClusterField)


def new_cluster(tx: WriteTx, ns: int, row: ImportedCluster, *, dim: int) -> int:
    """Found a cluster with an imported profile, without members; returns its number."""
    number = tx.connection.scalar(sa.select(namespaces.c.next_cluster).where(namespaces.c.ns == ns)) or 1
    by_client = bool(row.title) and row.profiled_by is AnnotationSource.NONE
    cluster = Cluster(
        cluster=number,
        title=row.title,
        summary=row.summary,
        tags=row.tags,
        representatives=(),
        vector_sum=np.zeros(dim, dtype=np.float32),
        closed_episodes=0,
        memory_count=0,
        state=row.state,
        pinned=row.pinned,
        profile_stale=row.profile_stale,
        profile_count=row.memory_count,
        create_time_ns=row.create_time_ns,
        update_time_ns=row.update_time_ns,
        client_fields=_EVERY_FIELD if by_client else frozenset(),
        profiled_by=row.profiled_by,
    )
    upsert_clusters(tx, ns, [cluster])
    return number


def new_episode(
    tx: WriteTx, ns: int, place: ReservedPlace, session_id: str, position: int, *, dim: int, now_ns: int
) -> None:
    """Make the closed episode of a place where there is none; its sums come from its members, later."""
    episode = Episode(
        episode=place.episode,
        session_id=session_id,
        cluster=place.cluster,
        vector_sum=np.zeros(dim, dtype=np.float32),
        memory_count=0,
        first_position=position,
        last_position=position,
        open=False,
        last_time_ns=now_ns,
    )
    new = insert(episodes).values(**episode_to_values(ns, episode))
    tx.connection.execute(new.on_conflict_do_nothing(index_elements=["ns", "episode"]))


def finish_import(
    tx: WriteTx, ns: int, ref: StreamRef, *, last_seq: int, now_ns: int
) -> tuple[StreamPosition, ImportResult]:
    """End an import (see `catalog.api_imports`)."""
    require_live(tx, ns)
    position = streams.finish_stream(tx.connection, ns, ref, last_seq=last_seq)
    numbers = ImportBook(tx, ns, ref.stream_id)
    _settle_links(tx, ns, numbers, now_ns=now_ns)
    _release_orphans(tx, ns, now_ns=now_ns)
    touched = _represent(tx, ns, numbers, now_ns=now_ns) | _drop_empty(tx, ns, numbers, now_ns=now_ns)
    return position, ImportResult(items=(), revision=tx.revision, clusters=frozenset(touched))


def still_linked(tx: WriteTx, ns: int, pairs: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return those (key, target's id) of which the memory is there and still links to the target."""
    links: dict[int, set[str]] = {}
    for some in chunks(sorted({key for key, _ in pairs})):
        rows = tx.connection.execute(
            sa.select(memories.c.key, memories.c.links).where(memories.c.ns == ns, memories.c.key.in_(some))
        )
        links.update((row.key, {link.memory_id for link in links_from_json(row.links)}) for row in rows)
    return [(key, target) for key, target in pairs if target in links.get(key, ())]


def _settle_links(tx: WriteTx, ns: int, numbers: ImportBook, *, now_ns: int) -> None:
    """Take out links to memories that did not come; one that came by another way is linked to."""
    awaited = numbers.never_came()
    pairs = still_linked(tx, ns, [(key, target) for key, targets in awaited.items() for target in sorted(targets)])
    there: dict[str, int] = {}
    for some in chunks(sorted({target for _, target in pairs})):
        rows = tx.connection.execute(
            sa.select(memories.c.memory_id, memories.c.key).where(
                memories.c.ns == ns, memories.c.memory_id.in_(some)
            )
        )
        there.update((row.memory_id, row.key) for row in rows)
    tx.executemany(INSERT_LINK, [(ns, there[target], key) for key, target in pairs if target in there])
    missing: dict[int, set[str]] = {}
    for key, target in pairs:
        if target not in there:
            missing.setdefault(key, set()).add(target)
    for keys in chunks(sorted(missing)):
        found = tx.connection.execute(
            sa.select(memories.c.key, memories.c.links, memories.c.cluster)
            .where(memories.c.ns == ns, memories.c.key.in_(keys))
            .order_by(memories.c.key)
        ).all()
        for row in found:
            kept = [link for link in links_from_json(row.links) if link.memory_id not in missing[row.key]]
            revision = tx.log_change(ns, ChangeKind.MEMORY_EVOLVED, row.key, time_ns=now_ns, cluster=row.cluster)
            tx.connection.execute(
                sa.update(memories)
                .where(memories.c.ns == ns, memories.c.key == row.key)
                .values(links=links_to_json(kept), revision=revision)
            )


def _release_orphans(tx: WriteTx, ns: int, *, now_ns: int) -> None:
    """Let nothing be superseded by a memory that did not come: it would be held back for ever."""
    newer = memories.alias("newer")
    there = sa.exists(
        sa.select(1).where(newer.c.ns == memories.c.ns, newer.c.memory_id == memories.c.superseded_by)
    )
    orphans = tx.connection.execute(
        sa.select(memories.c.key, memories.c.cluster).where(
            memories.c.ns == ns, sa.text("memories.superseded_by <> ''"), sa.not_(there)
        )
    ).all()
    for row in orphans:
        revision = tx.log_change(ns, ChangeKind.MEMORY_SUPERSEDED, row.key, time_ns=now_ns, cluster=row.cluster)
        tx.connection.execute(
            sa.update(memories)
            .where(memories.c.ns == ns, memories.c.key == row.key)
            .values(superseded_by="", revision=revision)
        )


def _represent(tx: WriteTx, ns: int, numbers: ImportBook, *, now_ns: int) -> set[int]:
    """Give clusters their representatives, best first; returns the clusters."""
    wanted: dict[int, list[str]] = {}
    for memory_id, number in numbers.of_kind(book.REPRESENTATIVE):
        wanted.setdefault(number // book.MAX_REPRESENTATIVES, []).append(memory_id)
    for cluster, memory_ids in wanted.items():
        found = {
            row.memory_id: row.key
            for row in tx.connection.execute(
                sa.select(memories.c.memory_id, memories.c.key).where(
                    memories.c.ns == ns, memories.c.cluster == cluster, memories.c.memory_id.in_(memory_ids)
                )
            )
        }
        keys = [found[memory_id] for memory_id in memory_ids if memory_id in found]
        if keys:
            revision = tx.log_change(ns, ChangeKind.CLUSTER_PUT, cluster, time_ns=now_ns)
            tx.connection.execute(
                sa.update(clusters)
                .where(clusters.c.ns == ns, clusters.c.cluster == cluster)
                .values(representatives=to_json(keys), revision=revision)
            )
    numbers.forget(book.REPRESENTATIVE)
    return set(wanted)


def _drop_empty(tx: WriteTx, ns: int, numbers: ImportBook, *, now_ns: int) -> set[int]:
    """Remove clusters of this import that nobody came into and nobody is awaited in; returns them."""
    made = {number for _, number in numbers.of_kind(book.CLUSTER)}
    made -= book.awaited_clusters(tx.connection, ns)
    empty: set[int] = set()
    for some in chunks(sorted(made)):
        used = sa.select(1).where(memories.c.ns == ns, memories.c.cluster == clusters.c.cluster)
        rows = tx.connection.scalars(
            sa.select(clusters.c.cluster).where(
                clusters.c.ns == ns, clusters.c.cluster.in_(some), sa.not_(sa.exists(used))
            )
        )
        empty.update(rows)
    for number in sorted(empty):
        for table in (episodes, clusters):
            tx.connection.execute(sa.delete(table).where(table.c.ns == ns, table.c.cluster == number))
        tx.log_change(ns, ChangeKind.CLUSTER_REMOVED, number, time_ns=now_ns)
    return empty
