"""Placing memories: episodes are cut, provisional clusters taken, closed episodes routed, large clusters split.

Design section 5 and paper section 3.1, with episodes as the unit of routing: a memory takes its open episode's
cluster at once; when the episode closes it is routed as one by its centroid. All of it is decided at write time
and returned as a `PlacementPlan`; the SLM's vote on a routed episode is added later (`memory.voting`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from clag_server.memory.centroids import unit
from clag_server.memory.cluster_map import ClusterMap
from clag_server.memory.config import OrganizeConfig
from clag_server.memory.splitting import two_means
from clag_server.types.cluster import Cluster, Episode, Move, Placement, PlacementPlan
from clag_server.types.memory import (
    DecidedBy,
    Matrix,
    Memory,
    MemoryState,
    RoutingCandidate,
    RoutingDecision,
    Vector,
)


class Placer:
    """Computes one plan on a `ClusterMap`, changing the map as it goes.

    Use one Placer for one transaction: call `place` and `close`, then `plan`. If the commit fails, the map must be
    loaded again.
    """

    def __init__(self, cluster_map: ClusterMap, config: OrganizeConfig, *, now_ns: int) -> None:
        self._map = cluster_map
        self._config = config
        self._now_ns = now_ns
        self._touched_episodes: dict[int, None] = {}
        self._touched_clusters: dict[int, None] = {}
        self._placements: list[Placement] = []
        self._moves: list[Move] = []
        self._routed: list[Move] = []
        self._removed: list[int] = []
        self._new_episodes: set[int] = set()
        self._new_clusters: set[int] = set()
        self._candidates: dict[int, tuple[RoutingCandidate, ...]] = {}
        self.closed = 0
        self.born = 0
        self.split = 0

    def place(self, memories: Sequence[Memory], vectors: Matrix, lexical: Sequence[str]) -> None:
        """Append each memory (in order) to its session's episode; vectors are (n, dim) unit rows.

        A late one (rewritten, or delayed by a failure) goes back to the run of its session that it stands in, where
        its neighbours in time speak for it, if it still fits there; else it is an episode of its own.
        """
        for memory, vector, tokens in zip(memories, vectors, lexical, strict=True):
            around = self._map.runs_around(memory.session_id, memory.session_position)
            if around:
                self._place_late(memory, vector, tokens, around)
            else:
                episode, decision = self._episode_for(memory, vector)
                self._join(episode, memory, vector, tokens, decision)

    def close(self, number: int, why: str) -> None:
        """Close an open episode and route it as one; closed or unknown episodes are left alone."""
        episode = self._map.episodes.get(number)
        if episode is None or not episode.open:
            return
        self.closed += 1
        centroid = unit(episode.vector_sum)
        candidates = self.candidates(centroid)
        source = self._map.clusters[episode.cluster]
        target, reason, founded = self._target(episode, source, candidates, why)
        decision = self._decision(candidates, reason, provisional=False, founded=founded)
        closed = replace(episode, open=False, cluster=target.cluster)
        self._map.put_episode(closed)
        self._touched_episodes[number] = None
        if target.cluster != source.cluster:
            self._shift(closed, source.cluster, target.cluster)
            self._moves.append(Move(number, target.cluster, decision))
            self._drop_if_empty(source.cluster)
        else:
            self._routed.append(Move(number, target.cluster, decision))
        self._map.add_centroid(target.cluster, centroid, 1)
        self._touched_clusters[target.cluster] = None
        self._split_if_large(target.cluster)

    def candidates(self, vector: Vector) -> tuple[RoutingCandidate, ...]:
        """Return the nearest routable clusters of a unit vector (dim,), best first."""
        center = self._map.episode_center(self._config.cluster_center_prior)
        return tuple(
            RoutingCandidate(
                cluster=number,
                title=self._map.clusters[number].title,
                cosine=cosine,
                channel=None,
                combined=cosine,
            )
            for number, cosine in self._map.routable.nearest_centred(vector, center, self._config.candidates)
        )

    def plan(self) -> PlacementPlan:
        """Return what was decided, as one transaction.

        Placements name the cluster that their episode has in the end, so a provisional cluster that came and went
        within this plan is never written, and no memory is placed twice.
        """
        episodes = [self._map.episodes[n] for n in self._touched_episodes if n in self._map.episodes]
        clusters = [self._map.clusters[n] for n in self._touched_clusters if n in self._map.clusters]
        final = {episode.episode: episode.cluster for episode in episodes}
        moves, routed = self._settled()
        return PlacementPlan(
            clusters=clusters,
            episodes=episodes,
            placements=[replace(p, cluster=final[p.episode]) for p in self._placements],
            moves=moves,
            routed_episodes=routed,
            removed_clusters=[n for n in self._removed if n not in self._new_clusters],
        )

    def routed(self) -> Sequence[Move]:
        """Episodes that this plan routes, with their decisions (for the SLM's vote)."""
        moves, routed = self._settled()
        return [*moves, *routed]

    def placed_clusters(self) -> Mapping[int, int]:
        """Cluster of each placed memory (by key), after moves and splits."""
        return {placement.key: self._map.episodes[placement.episode].cluster for placement in self._placements}

    def _settled(self) -> tuple[list[Move], list[Move]]:
        """Return the last move of each episode that was there before, and the last routing of all others."""
        moves = {move.episode: move for move in self._moves}
        routed = {move.episode: move for move in self._routed if move.episode not in moves}
        for number in [n for n in moves if n in self._new_episodes]:
            routed[number] = moves.pop(number)
        return list(moves.values()), list(routed.values())

    def _episode_for(self, memory: Memory, vector: Vector) -> tuple[Episode, RoutingDecision]:
        number = self._map.open_episodes.get(memory.session_id)
        if number is not None:
            episode = self._map.episodes[number]
            cosine = self._likeness(episode, vector)
            if cosine >= self._config.episode_cosine:
                reason = f"follows in its session's open episode (cosine {cosine:.2f})"
                return episode, self._decision(self._weighed(episode), reason, provisional=True)
            self.close(number, f"the next memory has another topic (cosine {cosine:.2f})")
        return self._begin(memory, vector)

    def _weighed(self, episode: Episode) -> tuple[RoutingCandidate, ...]:
        """Return the candidates of an open episode, once a plan: they explain, and decide nothing yet."""
        if episode.episode not in self._candidates:
            self._candidates[episode.episode] = self.candidates(unit(episode.vector_sum))
        return self._candidates[episode.episode]

    def _begin(self, memory: Memory, vector: Vector) -> tuple[Episode, RoutingDecision]:
        """Open an episode for a memory, in the nearest cluster or in a new one."""
        candidates = self.candidates(vector)
        if candidates and candidates[0].cosine >= self._config.cluster_cosine:
            cluster, founded = self._map.clusters[candidates[0].cluster], False
            reason = f"starts an episode; nearest cluster so far (cosine {candidates[0].cosine:.2f})"
        else:
            cluster, founded = self._found(), True
            reason = "starts an episode; no cluster is near, a new one is born"
        episode = self._map.new_episode(memory.session_id, cluster.cluster, memory.session_position, self._now_ns)
        self._candidates[episode.episode] = candidates
        return episode, self._decision(candidates, reason, provisional=True, founded=founded)

    def _place_late(self, memory: Memory, vector: Vector, tokens: str, around: Sequence[Episode]) -> None:
        """Put a memory back among its session's neighbours, or by itself where it resembles none of them."""
        fits = [(self._likeness(run, vector), run) for run in around if run.memory_count < self._config.episode_max]
        cosine, home = max(fits, key=lambda fit: (fit[0], fit[1].episode), default=(-1.0, None))
        if home is not None and cosine >= self._config.episode_cosine:
            reason = f"is back in the run of its session that it stands in (cosine {cosine:.2f})"
            decision = self._decision(self.candidates(vector), reason, provisional=home.open)
            self._join(home, memory, vector, tokens, decision)
            return
        running = self._map.open_episodes.get(memory.session_id)
        alone, decision = self._begin(memory, vector)
        self._join(alone, memory, vector, tokens, decision)
        self.close(alone.episode, "came late and is by itself")
        if running is not None:
            self._map.open_episodes[memory.session_id] = running

    def _join(
        self, episode: Episode, memory: Memory, vector: Vector, tokens: str, decision: RoutingDecision
    ) -> None:
        """Add a memory to an episode; one that is closed already has its part in its cluster's centroid changed."""
        position = memory.session_position
        grown = replace(
            episode,
            vector_sum=(episode.vector_sum + vector).astype(np.float32),
            memory_count=episode.memory_count + 1,
            first_position=min(episode.first_position, position) if episode.memory_count else position,
            last_position=max(episode.last_position, position) if episode.memory_count else position,
            last_time_ns=self._now_ns,
        )
        if not episode.open:
            self._map.add_centroid(episode.cluster, unit(episode.vector_sum), -1)
            self._map.add_centroid(episode.cluster, unit(grown.vector_sum), 1)
        self._map.put_episode(grown)
        self._touched_episodes[grown.episode] = None
        self._map.grow_cluster(grown.cluster, 1, self._now_ns)
        self._touched_clusters[grown.cluster] = None
        self._placements.append(
            Placement(
                key=memory.key,
                episode=grown.episode,
                cluster=grown.cluster,
                embedding=vector,
                lexical=tokens,
                routing=decision,
                state=MemoryState.EMBEDDED if grown.open else MemoryState.ROUTED,
            )
        )
        if grown.memory_count >= self._config.episode_max:
            self.close(grown.episode, "full")

    def _likeness(self, episode: Episode, vector: Vector) -> float:
        """Return the cosine of a memory and an episode's mean, seen from what all memories have in common."""
        center = self._map.memory_center(self._config.episode_center_prior)
        mean: Vector = (episode.vector_sum / max(episode.memory_count, 1)).astype(np.float32)
        return float(unit(mean - center) @ unit(vector - center))

    def _target(
        self, episode: Episode, source: Cluster, candidates: Sequence[RoutingCandidate], why: str
    ) -> tuple[Cluster, str, bool]:
        """Choose the cluster of a closing episode: the nearest if near enough, else a new one (True)."""
        best = candidates[0] if candidates else None
        if best is not None and best.cosine >= self._config.cluster_cosine:
            reason = f"nearest cluster (cosine {best.cosine:.2f}); closed: {why}"
            return self._map.clusters[best.cluster], reason, False
        if source.closed_episodes == 0 and self._map.cluster_episodes[source.cluster] == {episode.episode}:
            return source, f"too far from every cluster, founds its own; closed: {why}", True
        return self._found(), f"too far from every cluster, a new one is born; closed: {why}", True

    def _found(self) -> Cluster:
        cluster = self._map.new_cluster(self._now_ns)
        self._touched_clusters[cluster.cluster] = None
        self._new_clusters.add(cluster.cluster)
        self.born += 1
        return cluster

    def _shift(self, episode: Episode, source: int, target: int) -> None:
        self._map.grow_cluster(source, -episode.memory_count, self._now_ns)
        self._map.grow_cluster(target, episode.memory_count, self._now_ns)
        self._touched_clusters[source] = None
        self._touched_clusters[target] = None

    def _drop_if_empty(self, number: int) -> None:
        if not self._map.cluster_episodes.get(number) and self._map.clusters[number].closed_episodes == 0:
            self._map.remove_cluster(number)
            self._removed.append(number)

    def _split_if_large(self, number: int) -> None:
        """Split a cluster over the bound in two by 2-means over its closed episodes' centroids (paper, 3.1)."""
        cluster = self._map.clusters[number]
        if cluster.memory_count <= self._config.cluster_max or cluster.pinned:
            return
        closed = sorted(e for e in self._map.cluster_episodes[number] if not self._map.episodes[e].open)
        centroids = np.stack([self._map.episode_centroids.get(e) for e in closed])
        leaving = two_means(centroids)
        if leaving is None:
            return
        born = self._found()
        self.split += 1
        for e in (closed[i] for i in np.flatnonzero(leaving)):
            episode = replace(self._map.episodes[e], cluster=born.cluster)
            self._map.put_episode(episode)
            self._touched_episodes[e] = None
            self._shift(episode, number, born.cluster)
            centroid = self._map.episode_centroids.get(e)
            self._map.add_centroid(number, centroid, -1)
            self._map.add_centroid(born.cluster, centroid, 1)
            reason = f"cluster c{number} grew over {self._config.cluster_max} memories and was split"
            decision = self._decision(self.candidates(centroid), reason, provisional=False)
            self._moves.append(Move(e, born.cluster, decision))
        for part in (number, born.cluster):
            self._map.put_cluster(replace(self._map.clusters[part], profile_stale=True))

    def _decision(
        self,
        candidates: tuple[RoutingCandidate, ...],
        reason: str,
        *,
        provisional: bool,
        founded: bool = False,
    ) -> RoutingDecision:
        return RoutingDecision(
            decided_by=DecidedBy.VECTOR,
            candidates=candidates,
            vote=None,
            reason=reason,
            provisional=provisional,
            time_ns=self._now_ns,
            founded=founded,
        )
