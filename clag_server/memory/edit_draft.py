"""A draft of an edit of clusters: what changes, collected without touching the map, and the plan that does it.

Counts and sums are left to the catalog, which makes them anew from the members of whatever a plan touches; those
of `preview` are for showing only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from clag_server.memory.centroids import unit
from clag_server.memory.cluster_map import ClusterMap, new_cluster
from clag_server.memory.index_text import lexical_text
from clag_server.types.change import HistoryCause
from clag_server.types.cluster import (
    Cluster,
    ClusterNote,
    ClusterState,
    Episode,
    Move,
    Placement,
    PlacementPlan,
)
from clag_server.types.memory import DecidedBy, Matrix, Memory, MemoryState, RoutingDecision

_NEW = -1
"""Number of the first new cluster or episode of a draft; further ones count down. Real ones come with the plan."""


@dataclass(slots=True)
class EditDraft:
    """One edit in the making. Not committed, it leaves no trace.

    Args:
        cluster_map: The namespace's map; only read.
        now_ns: When the edit is made.
        cause: What history says of moved memories.
        by: Who decides.
    """

    cluster_map: ClusterMap
    now_ns: int
    cause: HistoryCause = HistoryCause.CLUSTER_EDIT
    by: DecidedBy = DecidedBy.MANUAL
    notes: list[ClusterNote] = field(default_factory=list)
    moved: int = 0
    _clusters: dict[int, Cluster] = field(default_factory=dict)
    _new_episodes: dict[int, Episode] = field(default_factory=dict)
    _moves: dict[int, Move] = field(default_factory=dict)
    _placements: list[tuple[Memory, int, RoutingDecision]] = field(default_factory=list)
    _sizes: dict[int, int] = field(default_factory=dict)
    _removed: list[int] = field(default_factory=list)

    def cluster(self, number: int) -> Cluster:
        """Return a cluster as the draft leaves it (counts as they would be)."""
        known = self._clusters.get(number) or self.cluster_map.clusters[number]
        return replace(known, memory_count=known.memory_count + self._sizes.get(number, 0))

    def put(self, cluster: Cluster) -> None:
        """Change a cluster's profile or state."""
        self._clusters[cluster.cluster] = replace(
            cluster, memory_count=cluster.memory_count - self._sizes.get(cluster.cluster, 0)
        )

    def found(self, title: str) -> int:
        """Add a new cluster and return its provisional (negative) number."""
        number = _NEW - sum(1 for n in self._clusters if n < 0)
        self._clusters[number] = new_cluster(number, title, self.cluster_map.dim, self.now_ns)
        return number

    def move_episode(self, number: int, target: int, reason: str) -> None:
        """Take a whole episode to a cluster."""
        episode = self.cluster_map.episodes[number]
        self._moves[number] = Move(number, target, self._decision(reason), self.cause)
        self._shift(episode.cluster, target, episode.memory_count)

    def move_memories(self, memories: Sequence[Memory], target: int, reason: str) -> None:
        """Take placed memories (with embeddings) to a cluster: whole episodes, or new ones of those that leave.

        A memory that leaves its episode takes along those of the same episode that leave with it.
        """
        by_episode: dict[int, list[Memory]] = {}
        for memory in memories:
            if memory.episode is not None and memory.cluster != target:
                by_episode.setdefault(memory.episode, []).append(memory)
        for number, members in sorted(by_episode.items()):
            episode = self.cluster_map.episodes[number]
            if len(members) == episode.memory_count and not episode.open:
                self.move_episode(number, target, reason)
            else:
                self._part(episode, sorted(members, key=lambda m: m.session_position), target, reason)

    def remove(self, number: int) -> None:
        """Remove a cluster that everything was moved out of."""
        self._removed.append(number)

    def active_clusters(self) -> int:
        """Return how many active clusters the edit leaves."""
        numbers = (set(self.cluster_map.clusters) | set(self._clusters)) - set(self._removed)
        states = (self._clusters.get(n) or self.cluster_map.clusters[n] for n in numbers)
        return sum(cluster.state is ClusterState.ACTIVE for cluster in states)

    def plan(self, next_cluster: int, next_episode: int) -> tuple[PlacementPlan, dict[int, int]]:
        """Return the plan, and the real number of each provisional cluster."""
        new = sorted((n for n in self._clusters if n < 0), reverse=True)
        numbers = {n: next_cluster + i for i, n in enumerate(new)}
        homes = {n: next_episode + i for i, n in enumerate(sorted(self._new_episodes, reverse=True))}

        def real(number: int) -> int:
            return numbers.get(number, number)

        gathers = self._gathering()
        plan = PlacementPlan(
            clusters=[
                replace(cluster, cluster=real(number), update_time_ns=self.now_ns)
                for number, cluster in sorted(self._clusters.items())
                if number not in self._removed
            ],
            episodes=[
                replace(episode, episode=homes[number], cluster=real(episode.cluster))
                for number, episode in sorted(self._new_episodes.items())
            ],
            placements=[
                Placement(
                    key=memory.key,
                    episode=homes[home],
                    cluster=real(self._new_episodes[home].cluster),
                    embedding=memory.embedding,
                    lexical=lexical_text(memory),
                    **_onward(memory, decision, again=gathers[self._new_episodes[home].cluster]),
                )
                for memory, home, decision in self._placements
                if memory.embedding is not None
            ],
            moves=[
                replace(move, cluster=real(move.cluster), again=gathers[move.cluster])
                for _, move in sorted(self._moves.items())
            ],
            removed_clusters=self._removed,
            notes=[
                replace(note, cluster=real(note.cluster), others=tuple(real(n) for n in note.others))
                for note in self.notes
            ],
        )
        return plan, numbers

    def touched(self) -> tuple[set[int], set[int]]:
        """Return the (clusters, episodes) of the map that the plan changes."""
        episodes = set(self._moves) | {m.episode for m, _, _ in self._placements if m.episode is not None}
        clusters = {n for n in (*self._clusters, *self._sizes) if n >= 0} | set(self._removed)
        return clusters, episodes

    def _gathering(self) -> dict[int, bool]:
        """Return for each target whether what is moved there meets other memories than those that it was with."""
        origins: dict[int, set[int]] = {}
        for move in self._moves.values():
            origins.setdefault(move.cluster, set()).add(self.cluster_map.episodes[move.episode].cluster)
        for memory, home, _ in self._placements:
            if memory.cluster is not None:
                origins.setdefault(self._new_episodes[home].cluster, set()).add(memory.cluster)
        return {target: target >= 0 or len(sources) > 1 for target, sources in origins.items()}

    def _part(self, episode: Episode, members: Sequence[Memory], target: int, reason: str) -> None:
        home = _NEW - len(self._new_episodes)
        vectors = [member.embedding for member in members if member.embedding is not None]
        self._new_episodes[home] = Episode(
            episode=home,
            session_id=episode.session_id,
            cluster=target,
            vector_sum=np.stack(vectors).sum(axis=0, dtype=np.float32),
            memory_count=len(members),
            first_position=members[0].session_position,
            last_position=members[-1].session_position,
            open=False,
            last_time_ns=self.now_ns,
        )
        self._placements += [(member, home, self._decision(reason)) for member in members]
        self._shift(episode.cluster, target, len(members))

    def _shift(self, source: int, target: int, count: int) -> None:
        self._sizes[source] = self._sizes.get(source, 0) - count
        self._sizes[target] = self._sizes.get(target, 0) + count
        self.moved += count
        for number in (source, target):
            known = self._clusters.get(number) or self.cluster_map.clusters[number]
            self._clusters[number] = replace(known, profile_stale=True)

    def _decision(self, reason: str) -> RoutingDecision:
        return RoutingDecision(
            decided_by=self.by, candidates=(), vote=None, reason=reason, provisional=False, time_ns=self.now_ns
        )


def _onward(memory: Memory, decision: RoutingDecision, *, again: bool) -> dict[str, Any]:
    """Return what a memory goes on with at its new place: the decision, and a state.

    One that had evolved evolves once more among memories that it has not met, as a moved episode's members do.
    """
    back = again and memory.state is MemoryState.EVOLVED
    waits = memory.state is not MemoryState.EVOLVED and memory.routing is not None and memory.routing.evolve_again
    state = MemoryState.ROUTED if back else max(memory.state, MemoryState.ROUTED)
    return {"routing": replace(decision, evolve_again=back or waits), "state": state}


def closed_centroids(cluster_map: ClusterMap, number: int) -> tuple[list[int], Matrix]:
    """Return the closed episodes of a cluster, ascending, and their unit centroids (n, dim)."""
    closed = sorted(e for e in cluster_map.cluster_episodes[number] if not cluster_map.episodes[e].open)
    rows = [unit(cluster_map.episodes[e].vector_sum) for e in closed]
    return closed, np.stack(rows) if rows else np.zeros((0, cluster_map.dim), dtype=np.float32)
