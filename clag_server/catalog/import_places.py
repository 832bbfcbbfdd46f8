"""Memories that were imported without an embedding come to the place that was reserved for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from clag_server.catalog import import_book as book
from clag_server.catalog import lexical
from clag_server.catalog.import_clusters import new_episode
from clag_server.catalog.namespaces import require_live
from clag_server.catalog.placements import Placed, forget_failures, queue_ops
from clag_server.catalog.rows import vector_to_blob
from clag_server.catalog.schema import ChangeKind, clusters, episodes, memories
from clag_server.catalog.sums import Touched, settle
from clag_server.catalog.traces import chunks
from clag_server.catalog.transaction import WriteTx
from clag_server.types.ingest import Disposition, StoredItem
from clag_server.types.memory import AnnotationSource, MemoryState
from clag_server.types.transfer import EmbeddedMemory, ImportResult, ReservedPlace


def place_reserved(tx: WriteTx, ns: int, embedded: Sequence[EmbeddedMemory], *, now_ns: int) -> ImportResult:
    """Place memories (see `catalog.api_imports`)."""
    live = require_live(tx, ns)
    places = _still_there(tx, ns, book.reserved_places(tx.connection, ns, [one.key for one in embedded]))
    waiting = _waiting(tx, ns, places)
    touched = Touched(always=True)
    puts: list[Placed] = []
    tokens: list[tuple[int, str]] = []
    items: list[StoredItem] = []
    for one in embedded:
        row = waiting.get(one.key)
        if row is None:
            continue
        place = places[one.key]
        new_episode(tx, ns, place, row.session_id, row.session_position, dim=live.dim, now_ns=now_ns)
        placed = Placed(one.key, tx.next_placement(), place.cluster, row.event_time_ns)
        organized = row.annotated_by != AnnotationSource.NONE
        revision = tx.log_change(ns, ChangeKind.MEMORY_PLACED, one.key, time_ns=now_ns, cluster=place.cluster)
        tx.connection.execute(
            sa.update(memories)
            .where(memories.c.ns == ns, memories.c.key == one.key)
            .values(
                embedding=vector_to_blob(one.embedding),
                episode=place.episode,
                cluster=place.cluster,
                placement_id=placed.placement_id,
                state=int(MemoryState.EVOLVED if organized else MemoryState.ROUTED),
                error="",
                revision=revision,
            )
        )
        puts.append(placed)
        tokens.append((one.key, one.lexical))
        items.append(StoredItem(0, Disposition.CREATED, row.memory_id, one.key, None))
        touched.episodes.add(place.episode)
        touched.clusters.add(place.cluster)
    lexical.add(tx, ns, tokens)
    queue_ops(tx, ns, puts=puts, deletes=[])
    settle(tx, ns, touched)
    forget_failures(tx, [placed.key for placed in puts])
    book.release(tx, ns, [one.key for one in embedded])
    return ImportResult(items, tx.revision, frozenset(touched.episodes), frozenset(touched.clusters))


def _waiting(tx: WriteTx, ns: int, keys: dict[int, ReservedPlace]) -> dict[int, sa.Row[*tuple[Any, ...]]]:
    """Return the memories that have no place yet, by key."""
    m = memories.c
    found: dict[int, sa.Row[*tuple[Any, ...]]] = {}
    for some in chunks(sorted(keys)):
        rows = tx.connection.execute(
            sa.select(m.key, m.memory_id, m.session_id, m.session_position, m.event_time_ns, m.annotated_by).where(
                m.ns == ns, m.key.in_(some), m.state == int(MemoryState.STORED), m.placement_id.is_(None)
            )
        )
        found.update((row.key, row) for row in rows)
    return found


def _still_there(tx: WriteTx, ns: int, places: dict[int, ReservedPlace]) -> dict[int, ReservedPlace]:
    """Return places as they are now: an episode that was moved took its place along, a cluster may be gone."""
    homes: dict[int, int] = {}
    for some in chunks(sorted({place.episode for place in places.values()})):
        rows = tx.connection.execute(
            sa.select(episodes.c.episode, episodes.c.cluster).where(
                episodes.c.ns == ns, episodes.c.episode.in_(some)
            )
        )
        homes.update((row.episode, row.cluster) for row in rows)
    now = {
        key: ReservedPlace(place.episode, homes.get(place.episode, place.cluster)) for key, place in places.items()
    }
    there: set[int] = set()
    for some in chunks(sorted({place.cluster for place in now.values()})):
        there.update(
            tx.connection.scalars(
                sa.select(clusters.c.cluster).where(clusters.c.ns == ns, clusters.c.cluster.in_(some))
            )
        )
    return {key: place for key, place in now.items() if place.cluster in there}
