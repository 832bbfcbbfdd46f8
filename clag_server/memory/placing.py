"""Placing memories: episodes are cut, provisional clusters taken, closed episodes routed, large clusters split.

Design section 5 and paper section 3.1, with episodes as the unit of routing: a memory takes its open episode's
cluster at once; when the episode closes it is routed as one by its centroid. All of it is decided at write time
and returned as a `PlacementPlan`. Where the SLM has a say it is asked later (`memory.vote_stage`), and what it and
the vectors settle on comes back here as one more plan (`settle`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from clag_server.memory.centroids import unit
from clag_server.memory.cluster_map import ClusterMap
from clag_server.memory.config import OrganizeConfig
from clag_server.memory.routing_candidates import nearest_clusters
from clag_server.memory.routing_plan import PlanDraft
from clag_server.memory.routing_strategies import strategy_of
from clag_server.memory.splitting import two_means
from clag_server.types.cluster import Cluster, Episode, Placement, PlacementPlan
from clag_server.types.memory import (
    DecidedBy,
    FallbackCause,
    Matrix,
    Memory,
    MemoryState,
    RoutingCandidate,
    RoutingDecision,
    Vector,
)
from clag_server.types.namespace import RoutingUnit


class Placer:
    """Computes one plan on a `ClusterMap`, changing the map as it goes.

    Use one Placer for one transaction: call `place`, `close` and `settle`, then `plan`. If the commit fails, the
    map must be loaded again.

    Args:
        cluster_map: The namespace.
        config: How memories are organized.
        now_ns: When.
        unit: What one decision is about.
        unasked: Why the SLM is not asked about what is decided here, NONE when it is.
    """

    def __init__(
        self,
        cluster_map: ClusterMap,
        config: OrganizeConfig,
        *,
        now_ns: int,
        unit: RoutingUnit = RoutingUnit.EPISODE,
        unasked: FallbackCause = FallbackCause.NONE,
    ) -> None:
        self._map = cluster_map
        self._config = config
        self._strategy = strategy_of(config)
        self._now_ns = now_ns
        self._unit = unit
        self._unasked = unasked
        self._draft = PlanDraft(cluster_map, now_ns=now_ns)
        self._candidates: dict[int, tuple[RoutingCandidate, ...]] = {}
        self.undecided: set[int] = set()
        """Episodes that this plan routes and the SLM is to be asked about; for the map, once it is committed."""
        self.closed = 0
        self.split = 0
        self.resettled = 0
        """Episodes for which another cluster was settled on."""

    @property
    def born(self) -> int:
        """Clusters founded."""
        return self._draft.born

    def place(self, memories: Sequence[Memory], vectors: Matrix, lexical: Sequence[str]) -> None:
        """Append each memory (in order) to its session's episode; vectors are (n, dim) unit rows.

        A late one (rewritten, or delayed by a failure) goes back to the run of its session that it stands in, where
        its neighbours in time speak for it, if it still fits there; else it is an episode of its own.
        """
        for memory, vector, tokens in zip(memories, vectors, lexical, strict=True):
            if self._unit is RoutingUnit.MEMORY:
                self._place_alone(memory, vector, tokens, "each memory is routed by itself")
                continue
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
        candidates = self.candidates(unit(episode.vector_sum))
        target, reason, founded = self._target(episode, candidates, why)
        decision = self._routing(candidates, reason, founded=founded)
        if decision.awaits_slm:
            self.undecided.add(number)
        self._draft.close(episode, target.cluster, decision)
        self._part_if_due(target.cluster)

    def settle(self, number: int, target: int, decision: RoutingDecision) -> None:
        """Leave a closed episode in its cluster, or take it to another one, under a decision made since."""
        source = self._map.episodes[number].cluster
        if not decision.awaits_slm:
            self._map.undecided.discard(number)
        if target == source:
            self._draft.stay(number, decision)
            return
        self.resettled += 1
        self._draft.take(number, target, decision)
        self._draft.describe_again([source])
        self._draft.drop_if_empty(source)
        self._part_if_due(target)

    def candidates(self, vector: Vector) -> tuple[RoutingCandidate, ...]:
        """Return the nearest routable clusters of a unit vector (dim,), best first."""
        return nearest_clusters(self._map, self._config, vector)

    def plan(self) -> PlacementPlan:
        """Return what was decided, as one transaction."""
        return self._draft.plan()

    def placed_clusters(self) -> Mapping[int, int]:
        """Cluster of each placed memory (by key), after moves and splits."""
        return self._draft.placed_clusters()

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
        home = self._strategy.home(self._map, candidates)
        if home.cluster is not None:
            cluster, founded = self._map.clusters[home.cluster], False
            reason = f"starts an episode; so far {home.reason}"
        else:
            cluster, founded = self._draft.found(), True
            reason = f"starts an episode; {home.reason}, a new one is born"
        episode = self._draft.begin(memory.session_id, cluster.cluster, memory.session_position)
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
        self._place_alone(memory, vector, tokens, "came late and is by itself")

    def _place_alone(self, memory: Memory, vector: Vector, tokens: str, why: str) -> None:
        """Make a memory an episode of its own, which closes at once; one that its session has open goes on."""
        running = self._map.open_episodes.get(memory.session_id)
        alone, decision = self._begin(memory, vector)
        self._join(alone, memory, vector, tokens, decision)
        self.close(alone.episode, why)
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
        placement = Placement(
            key=memory.key,
            episode=grown.episode,
            cluster=grown.cluster,
            embedding=vector,
            lexical=tokens,
            routing=decision,
            state=MemoryState.EMBEDDED if grown.open else MemoryState.ROUTED,
        )
        self._draft.join(grown, placement)
        if grown.memory_count >= self._config.episode_max:
            self.close(grown.episode, "full")

    def _likeness(self, episode: Episode, vector: Vector) -> float:
        """Return the cosine of a memory and an episode's mean, seen from what all memories have in common."""
        center = self._map.memory_center(self._config.episode_center_prior)
        mean: Vector = (episode.vector_sum / max(episode.memory_count, 1)).astype(np.float32)
        return float(unit(mean - center) @ unit(vector - center))

    def _target(
        self, episode: Episode, candidates: Sequence[RoutingCandidate], why: str
    ) -> tuple[Cluster, str, bool]:
        """Choose the cluster of a closing episode: where it belongs, else a new one (True)."""
        home = self._strategy.home(self._map, candidates)
        if home.cluster is not None:
            return self._map.clusters[home.cluster], f"{home.reason}; closed: {why}", False
        source = self._map.clusters[episode.cluster]
        if source.closed_episodes == 0 and self._map.cluster_episodes[source.cluster] == {episode.episode}:
            return source, f"{home.reason}, founds its own; closed: {why}", True
        return self._draft.found(), f"{home.reason}, a new one is born; closed: {why}", True

    def _part_if_due(self, number: int) -> None:
        """Part a cluster that an episode has joined, where the strategy says so or it is over the bound."""
        parting = self._strategy.parting(self._map)
        if parting is not None:
            for group in parting.leaving:
                self._part(parting.cluster, group, parting.reason)
        elif self._strategy.splits:
            self._split_if_large(number)

    def _split_if_large(self, number: int) -> None:
        """Split a cluster over the bound in two by 2-means over its closed episodes' centroids (paper, 3.1)."""
        cluster = self._map.clusters[number]
        if cluster.memory_count <= self._config.cluster_max or cluster.pinned:
            return
        closed = sorted(e for e in self._map.cluster_episodes[number] if not self._map.episodes[e].open)
        leaving = two_means(np.stack([self._map.episode_centroids.get(e) for e in closed]))
        if leaving is None:
            return
        self.split += 1
        group = [closed[i] for i in np.flatnonzero(leaving)]
        self._part(number, group, f"cluster c{number} grew over {self._config.cluster_max} memories and was split")

    def _part(self, number: int, leaving: Sequence[int], reason: str) -> None:
        """Take closed episodes of a cluster to a new one; those that await the SLM still do."""
        born = self._draft.found().cluster
        for e in leaving:
            candidates = self.candidates(self._map.episode_centroids.get(e))
            awaits = e in self._map.undecided or e in self.undecided
            decision = self._decision(candidates, reason, provisional=awaits)
            self._draft.take(e, born, replace(decision, awaits_slm=awaits))
        self._draft.describe_again([number, born])

    def _routing(self, candidates: tuple[RoutingCandidate, ...], reason: str, *, founded: bool) -> RoutingDecision:
        """Return the vectors' decision on a closing episode, with what becomes of the SLM's say in it."""
        if founded:
            choice = bool(candidates) and candidates[0].cosine >= self._config.pull_cosine
        else:
            choice = len(candidates) > 1
        unasked = self._unasked if self._strategy.asks_slm else FallbackCause.DISABLED
        awaits = choice and unasked is FallbackCause.NONE
        decision = self._decision(candidates, reason, provisional=awaits, founded=founded)
        return replace(decision, awaits_slm=awaits, fallback=unasked if choice else FallbackCause.NONE)

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
