"""One transaction of placements in the making: the map changes as it goes, and the plan collects what to write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from clag_server.memory.centroids import unit
from clag_server.memory.cluster_map import ClusterMap
from clag_server.types.cluster import Cluster, Episode, Move, Placement, PlacementPlan
from clag_server.types.memory import RoutingDecision


class PlanDraft:
    """Changes of a `ClusterMap`, collected as a `PlacementPlan`.

    Args:
        cluster_map: The namespace; loaded again by the owner when the commit fails.
        now_ns: When.
    """

    def __init__(self, cluster_map: ClusterMap, *, now_ns: int) -> None:
        self._map = cluster_map
        self._now_ns = now_ns
        self._touched_episodes: dict[int, None] = {}
        self._touched_clusters: dict[int, None] = {}
        self._placements: list[Placement] = []
        self._moves: list[Move] = []
        self._routed: list[Move] = []
        self._removed: list[int] = []
        self._new_episodes: set[int] = set()
        self._new_clusters: set[int] = set()
        self._origins: dict[int, int] = {}
        """Where each moved episode was before."""
        self.born = 0

    def found(self) -> Cluster:
        """Found an empty cluster."""
        cluster = self._map.new_cluster(self._now_ns)
        self._touched_clusters[cluster.cluster] = None
        self._new_clusters.add(cluster.cluster)
        self.born += 1
        return cluster

    def begin(self, session_id: str, cluster: int, position: int) -> Episode:
        """Open an episode without members."""
        episode = self._map.new_episode(session_id, cluster, position, self._now_ns)
        self._new_episodes.add(episode.episode)
        return episode

    def join(self, grown: Episode, placement: Placement) -> None:
        """Put a memory into an episode, given as it is with it."""
        self._map.put_episode(grown)
        self._touched_episodes[grown.episode] = None
        self._map.grow_cluster(grown.cluster, 1, self._now_ns)
        self._touched_clusters[grown.cluster] = None
        self._placements.append(placement)

    def close(self, episode: Episode, target: int, decision: RoutingDecision) -> None:
        """Close an open episode in the cluster that it is routed to; a cluster that this leaves empty goes."""
        source = episode.cluster
        self._map.put_episode(replace(episode, open=False, cluster=target))
        self._touched_episodes[episode.episode] = None
        if target != source:
            self._shift(episode, source, target)
            self._moves.append(Move(episode.episode, target, decision))
            self.drop_if_empty(source)
        else:
            self.stay(episode.episode, decision)
        self._map.add_centroid(target, unit(episode.vector_sum), 1)
        self._touched_clusters[target] = None

    def stay(self, number: int, decision: RoutingDecision) -> None:
        """Give an episode another decision, in the cluster where it is."""
        self._routed.append(Move(number, self._map.episodes[number].cluster, decision))

    def take(self, number: int, target: int, decision: RoutingDecision) -> None:
        """Take a closed episode to another cluster, with its part in the centroids and counts."""
        episode = self._map.episodes[number]
        source = episode.cluster
        centroid = unit(episode.vector_sum)
        self._map.put_episode(replace(episode, cluster=target))
        self._touched_episodes[number] = None
        self._shift(episode, source, target)
        self._map.add_centroid(source, centroid, -1)
        self._map.add_centroid(target, centroid, 1)
        self._moves.append(Move(number, target, decision))

    def describe_again(self, clusters: Iterable[int]) -> None:
        """Say that profiles are of the past."""
        for number in clusters:
            self._map.put_cluster(replace(self._map.clusters[number], profile_stale=True))
            self._touched_clusters[number] = None

    def drop_if_empty(self, number: int) -> None:
        """Remove a cluster that no episode is in any more."""
        if not self._map.cluster_episodes.get(number) and self._map.clusters[number].closed_episodes == 0:
            self._map.remove_cluster(number)
            self._removed.append(number)

    def plan(self) -> PlacementPlan:
        """Return what was decided, as one transaction.

        Placements name the cluster that their episode has in the end, so a provisional cluster that came and went
        within this plan is never written, and no memory is placed twice.
        """
        episodes = [self._map.episodes[n] for n in self._touched_episodes if n in self._map.episodes]
        clusters = [self._map.clusters[n] for n in self._touched_clusters if n in self._map.clusters]
        final = {episode.episode: episode.cluster for episode in episodes}
        # The last move of each episode that was there before, and the last routing of all others.
        moves = {move.episode: move for move in self._moves}
        gathered = {
            cluster: self._gathers(cluster, moves.values()) for cluster in {m.cluster for m in moves.values()}
        }
        moves = {number: replace(move, again=gathered[move.cluster]) for number, move in moves.items()}
        routed = {move.episode: move for move in self._routed if move.episode not in moves}
        for number in [n for n in moves if n in self._new_episodes]:
            routed[number] = moves.pop(number)
        return PlacementPlan(
            clusters=clusters,
            episodes=episodes,
            placements=[replace(p, cluster=final[p.episode]) for p in self._placements],
            moves=list(moves.values()),
            routed_episodes=list(routed.values()),
            removed_clusters=[n for n in self._removed if n not in self._new_clusters],
        )

    def placed_clusters(self) -> Mapping[int, int]:
        """Cluster of each placed memory (by key), after moves and splits."""
        return {placement.key: self._map.episodes[placement.episode].cluster for placement in self._placements}

    def _gathers(self, cluster: int, moves: Iterable[Move]) -> bool:
        """Whether the episodes that move to a cluster meet others there than those that they were with."""
        origins = {self._origins.get(move.episode) for move in moves if move.cluster == cluster}
        return cluster not in self._new_clusters or len(origins) > 1

    def _shift(self, episode: Episode, source: int, target: int) -> None:
        self._origins.setdefault(episode.episode, source)
        self._map.grow_cluster(source, -episode.memory_count, self._now_ns)
        self._map.grow_cluster(target, episode.memory_count, self._now_ns)
        self._touched_clusters[source] = None
        self._touched_clusters[target] = None
