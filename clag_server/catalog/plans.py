"""Applying a placement plan: one transaction from embedding to outbox."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from clag_server.catalog import lexical
from clag_server.catalog.cluster_log import write_notes
from clag_server.catalog.placements import Placed, forget_failures, queue_ops
from clag_server.catalog.rows import (
    cluster_to_values,
    episode_to_values,
    routing_to_json,
    to_json,
    vector_to_blob,
)
from clag_server.catalog.schema import ChangeKind, clusters, episodes, memories, memory_history, namespaces
from clag_server.catalog.sums import Touched, settle
from clag_server.catalog.transaction import WriteTx, compile_insert
from clag_server.types.cluster import Cluster, Episode, Move, Placement, PlacementPlan
from clag_server.types.memory import MemoryState

_INSERT_HISTORY = compile_insert(memory_history)


@dataclass(frozen=True, slots=True)
class _Spot:
    """Where a memory is now; `placement_id` is None for one that was never placed.

    `again` says of one that waits for evolution that it had evolved elsewhere before.
    """

    key: int
    cluster: int | None
    episode: int | None
    placement_id: int | None
    event_time_ns: int
    state: int
    again: int | None

    def placed(self) -> Placed | None:
        """Return its current placement."""
        if self.placement_id is None or self.cluster is None:
            return None
        return Placed(self.key, self.placement_id, self.cluster, self.event_time_ns)


_AGAIN_SQL = "json_extract(memories.routing, '$.evolve_again')"
_ROUTED_STATES = (MemoryState.ROUTED, MemoryState.EVOLVED)


def apply_plan(tx: WriteTx, ns: int, plan: PlacementPlan, *, now_ns: int) -> int:
    """Apply a plan and return its revision (see `catalog.api.Catalog.apply_plan`).

    Raises:
        ValueError: the plan names a cluster or an episode that does not exist, or removes a cluster in use.
    """
    touched = Touched(
        episodes={episode.episode for episode in plan.episodes},
        clusters={cluster.cluster for cluster in plan.clusters} | {episode.cluster for episode in plan.episodes},
    )
    upsert_clusters(tx, ns, plan.clusters)
    _upsert_episodes(tx, ns, plan.episodes)
    _check_targets(tx, ns, plan)
    _place(tx, ns, plan.placements, touched, now_ns=now_ns)
    for move in plan.moves:
        _move(tx, ns, move, touched, now_ns=now_ns)
    for routed in plan.routed_episodes:
        _route(tx, ns, routed, now_ns=now_ns)
    settle(tx, ns, touched)
    for cluster in plan.removed_clusters:
        _remove_cluster(tx, ns, cluster, now_ns=now_ns)
    write_notes(tx, ns, plan.notes, now_ns=now_ns)
    return tx.revision


def upsert_clusters(tx: WriteTx, ns: int, items: Sequence[Cluster]) -> None:
    """Write clusters whole, each under a revision of its own, without representatives that were deleted since."""
    if not items:
        return
    values = []
    there = _existing(tx, ns, items)
    for given in items:
        cluster = _of_the_living(tx, ns, given)
        kind = ChangeKind.CLUSTER_PUT if cluster.cluster in there else ChangeKind.CLUSTER_CREATED
        there.add(cluster.cluster)
        revision = tx.log_change(ns, kind, cluster.cluster, time_ns=cluster.update_time_ns)
        values.append(cluster_to_values(ns, cluster, revision=revision))
    _upsert(tx, clusters, ["ns", "cluster"], values)
    _use_up(tx, ns, namespaces.c.next_cluster, max(cluster.cluster for cluster in items))


def _of_the_living(tx: WriteTx, ns: int, cluster: Cluster) -> Cluster:
    if not cluster.representatives:
        return cluster
    known = sa.select(memories.c.key).where(memories.c.ns == ns, memories.c.key.in_(cluster.representatives))
    living = set(tx.connection.scalars(known))
    if len(living) == len(cluster.representatives):
        return cluster
    kept = tuple(key for key in cluster.representatives if key in living)
    return replace(cluster, representatives=kept, profile_stale=True)


def _existing(tx: WriteTx, ns: int, items: Sequence[Cluster]) -> set[int]:
    numbers = [cluster.cluster for cluster in items]
    known = sa.select(clusters.c.cluster).where(clusters.c.ns == ns, clusters.c.cluster.in_(numbers))
    return set(tx.connection.scalars(known))


def _upsert_episodes(tx: WriteTx, ns: int, items: Sequence[Episode]) -> None:
    if items:
        _upsert(tx, episodes, ["ns", "episode"], [episode_to_values(ns, episode) for episode in items])
        _use_up(tx, ns, namespaces.c.next_episode, max(episode.episode for episode in items))


def _use_up(tx: WriteTx, ns: int, following: sa.Column[Any], number: int) -> None:
    """Keep the next number of a kind above one that is in use."""
    tx.connection.execute(
        sa.update(namespaces).where(namespaces.c.ns == ns, following <= number).values({following.name: number + 1})
    )


def _upsert(tx: WriteTx, table: sa.Table, identity: list[str], values: list[dict[str, Any]]) -> None:
    new = insert(table)
    changed = {column.name: new.excluded[column.name] for column in table.c if column.name not in identity}
    tx.connection.execute(new.on_conflict_do_update(index_elements=identity, set_=changed), values)


def _check_targets(tx: WriteTx, ns: int, plan: PlacementPlan) -> None:
    """Refuse a plan whose memories would be nowhere."""
    wanted = {p.cluster for p in plan.placements} | {m.cluster for m in plan.moves}
    wanted |= {episode.cluster for episode in plan.episodes}
    _require(tx, wanted, sa.select(clusters.c.cluster).where(clusters.c.ns == ns), clusters.c.cluster)
    homes = {p.episode for p in plan.placements}
    _require(tx, homes, sa.select(episodes.c.episode).where(episodes.c.ns == ns), episodes.c.episode)


def _require(tx: WriteTx, wanted: set[int], query: sa.Select[tuple[int]], column: sa.Column[Any]) -> None:
    missing = wanted - set(tx.connection.scalars(query.where(column.in_(sorted(wanted))))) if wanted else wanted
    if missing:
        raise ValueError(f"the plan names {column.table.description} that do not exist: {sorted(missing)}")


def _spots(tx: WriteTx, ns: int, where: sa.ColumnElement[bool]) -> list[_Spot]:
    m = memories.c
    rows = tx.connection.execute(
        sa.select(m.key, m.cluster, m.episode, m.placement_id, m.event_time_ns, m.state, sa.text(_AGAIN_SQL)).where(
            m.ns == ns, where
        )
    )
    return sorted((_Spot(*row) for row in rows), key=lambda spot: spot.key)


def _place(tx: WriteTx, ns: int, placements: Sequence[Placement], touched: Touched, *, now_ns: int) -> None:
    """Place memories; one placed before gets a new placement and new lexical entries."""
    plan = {placement.key: placement for placement in placements}  # the last one counts
    before = _spots(tx, ns, memories.c.key.in_(sorted(plan)))
    if not before:
        return
    puts = []
    updates = []
    changed = ((spot.key, ChangeKind.MEMORY_PLACED, plan[spot.key].cluster, spot.cluster) for spot in before)
    revisions = tx.log_memories(ns, changed, time_ns=now_ns)
    for spot in before:
        placement = plan[spot.key]
        touched.clusters.add(placement.cluster)
        touched.episodes.add(placement.episode)
        placed = Placed(spot.key, tx.next_placement(), placement.cluster, spot.event_time_ns)
        puts.append(placed)
        updates.append(
            {
                "of": spot.key,
                "embedding": vector_to_blob(placement.embedding),
                "episode": placement.episode,
                "cluster": placement.cluster,
                "placement_id": placed.placement_id,
                "routing": routing_to_json(placement.routing),
                "state": int(placement.state),
                "error": "",
                "revision": revisions[spot.key],
                "update_time_ns": now_ns,
            }
        )
    _leave(before, touched)
    _update(tx, ns, updates)
    old = [current for spot in before if (current := spot.placed()) is not None]
    lexical.remove(tx, ns, [current.key for current in old])
    lexical.add(tx, ns, [(spot.key, plan[spot.key].lexical) for spot in before])
    queue_ops(tx, ns, puts=puts, deletes=old)
    forget_failures(tx, [spot.key for spot in before])


def _move(tx: WriteTx, ns: int, move: Move, touched: Touched, *, now_ns: int) -> None:
    """Move an episode's members; those that are in the cluster already keep their placement.

    One that had evolved and comes among others waits for evolution again (`Move.again`).
    """
    members = _members(tx, ns, move.episode)
    touched.episodes.add(move.episode)
    touched.clusters.add(move.cluster)
    _leave(members, touched)
    routing, again = _routings(move)
    puts, old, updates, history = [], [], [], []
    changed = (
        (spot.key, ChangeKind.MEMORY_ROUTED, move.cluster, None)
        if spot.cluster == move.cluster
        else (spot.key, ChangeKind.MEMORY_PLACED, move.cluster, spot.cluster)
        for spot in members
    )
    revisions = tx.log_memories(ns, changed, time_ns=now_ns)
    for spot in members:
        current = spot.placed()
        revision = revisions[spot.key]
        placement_id = spot.placement_id
        back = move.again and spot.state == MemoryState.EVOLVED and spot.cluster != move.cluster
        if current is not None and current.cluster != move.cluster:
            placement_id = tx.next_placement()
            puts.append(Placed(spot.key, placement_id, move.cluster, spot.event_time_ns))
            old.append(current)
            was = to_json({"cluster": current.cluster})
            history.append((revision, ns, spot.key, spot.key, now_ns, was, move.cause, "", move.cluster))
        updates.append(
            {
                "of": spot.key,
                "cluster": move.cluster,
                "placement_id": placement_id,
                "routing": again if back or _waits_again(spot) else routing,
                "state": int(MemoryState.ROUTED) if back else _routed(spot.state),
                "revision": revision,
                "update_time_ns": now_ns,
            }
        )
    _update(tx, ns, updates)
    tx.executemany(_INSERT_HISTORY, history)
    tx.connection.execute(
        sa.update(episodes)
        .where(episodes.c.ns == ns, episodes.c.episode == move.episode)
        .values(cluster=move.cluster)
    )
    queue_ops(tx, ns, puts=puts, deletes=old)
    forget_failures(tx, _advanced(members))


def _route(tx: WriteTx, ns: int, routed: Move, *, now_ns: int) -> None:
    """Record the decision on an episode's members where they are, and take those that are EMBEDDED to ROUTED.

    Members that went on already get the decision too: an SLM's vote often comes when they are EVOLVED.
    """
    members = _members(tx, ns, routed.episode)
    waiting = [spot for spot in members if spot.state == MemoryState.EMBEDDED]
    if any(spot.cluster != routed.cluster for spot in waiting):
        raise ValueError(f"episode {routed.episode} is not in cluster {routed.cluster}: move it instead")
    further = [spot for spot in members if spot.state in _ROUTED_STATES and spot.cluster == routed.cluster]
    decided = waiting + further
    routing, again = _routings(routed)
    changed = ((spot.key, ChangeKind.MEMORY_ROUTED, spot.cluster, None) for spot in decided)
    revisions = tx.log_memories(ns, changed, time_ns=now_ns)
    updates = [
        {
            "of": spot.key,
            "routing": again if _waits_again(spot) else routing,
            "state": _routed(spot.state),
            "revision": revisions[spot.key],
            "update_time_ns": now_ns,
        }
        for spot in decided
    ]
    _update(tx, ns, updates)
    forget_failures(tx, _advanced(waiting))


def _members(tx: WriteTx, ns: int, episode: int) -> list[_Spot]:
    return _spots(tx, ns, memories.c.episode == episode)


def _routings(move: Move) -> tuple[str, str]:
    """Return a decision as rows hold it: of most members, and of those that are to evolve again."""
    return routing_to_json(move.routing), routing_to_json(replace(move.routing, evolve_again=True))


def _waits_again(spot: _Spot) -> bool:
    return bool(spot.again) and spot.state != MemoryState.EVOLVED


def _routed(state: int) -> int:
    return int(MemoryState.ROUTED) if state == MemoryState.EMBEDDED else state


def _advanced(spots: Iterable[_Spot]) -> list[int]:
    return [spot.key for spot in spots if spot.state == MemoryState.EMBEDDED]


def _leave(spots: Iterable[_Spot], touched: Touched) -> None:
    """Remember where memories come from: those counts change too."""
    for spot in spots:
        if spot.episode is not None:
            touched.episodes.add(spot.episode)
        if spot.cluster is not None:
            touched.clusters.add(spot.cluster)


def _update(tx: WriteTx, ns: int, updates: list[dict[str, Any]]) -> None:
    """Update memories, each named by `of`; all rows set the same columns."""
    if updates:
        values: dict[str, Any] = {name: sa.bindparam(name) for name in updates[0] if name != "of"}
        tx.connection.execute(
            sa.update(memories).where(memories.c.ns == ns, memories.c.key == sa.bindparam("of")).values(values),
            updates,
        )


def _remove_cluster(tx: WriteTx, ns: int, cluster: int, *, now_ns: int) -> None:
    used = sa.select(1).where(memories.c.ns == ns, memories.c.cluster == cluster)
    if tx.connection.scalar(sa.select(sa.exists(used))):
        raise ValueError(f"cluster {cluster} still holds memories: move them first")
    tx.connection.execute(sa.delete(episodes).where(episodes.c.ns == ns, episodes.c.cluster == cluster))
    gone = tx.connection.execute(sa.delete(clusters).where(clusters.c.ns == ns, clusters.c.cluster == cluster))
    if gone.rowcount:
        tx.log_change(ns, ChangeKind.CLUSTER_REMOVED, cluster, time_ns=now_ns)
