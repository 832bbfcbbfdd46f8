"""Who decides which cluster an episode goes to: the product's way, and those that it is compared with.

The paper's ablation (section 5) has k-means clusters and one global pool beside the agent's own routing. A strategy
only says where an episode belongs; the `Placer` does the rest the same way for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from clag_server.memory.cluster_map import ClusterMap
from clag_server.memory.config import OrganizeConfig
from clag_server.memory.splitting import k_means
from clag_server.types.cluster import ClusterState
from clag_server.types.memory import RoutingCandidate
from clag_server.types.routing import Strategy


class Home(NamedTuple):
    """Where an episode belongs: a cluster, or None for one of its own; and why, for people."""

    cluster: int | None
    reason: str


class Parting(NamedTuple):
    """A cluster to be parted: the closed episodes that leave it, in one group for each new cluster; and why."""

    cluster: int
    leaving: Sequence[Sequence[int]]
    reason: str


class RoutingStrategy(Protocol):
    """Says where episodes belong. The SLM's vote, where `asks_slm`, comes after it (`memory.vote_stage`)."""

    @property
    def asks_slm(self) -> bool:
        """Whether an SLM that is trusted has a say."""

    @property
    def splits(self) -> bool:
        """Whether clusters over the bound are split."""

    def home(self, cluster_map: ClusterMap, candidates: Sequence[RoutingCandidate]) -> Home:
        """Choose for an episode whose nearest clusters are `candidates`, best first."""

    def parting(self, cluster_map: ClusterMap) -> Parting | None:
        """Say, after an episode has joined its cluster, whether one is to be parted now."""


@dataclass(frozen=True, slots=True)
class Nearest:
    """The nearest cluster where it is near enough, else a new one (design, section 5).

    Attributes:
        near_enough: Least cosine, seen from what all episodes have in common.
        asks_slm: Whether the SLM is asked too.
    """

    near_enough: float
    asks_slm: bool
    splits: bool = True

    def home(self, cluster_map: ClusterMap, candidates: Sequence[RoutingCandidate]) -> Home:  # noqa: ARG002
        """Choose the nearest."""
        if candidates and candidates[0].cosine >= self.near_enough:
            return Home(candidates[0].cluster, f"nearest cluster (cosine {candidates[0].cosine:.2f})")
        return Home(None, "too far from every cluster")

    def parting(self, cluster_map: ClusterMap) -> Parting | None:  # noqa: ARG002
        """Never: clusters are born one by one."""
        return None


@dataclass(frozen=True, slots=True)
class KMeans:
    """A buffer of the first memories, parted by k-means; from then on the nearest centroid, however far.

    Which of the two it is can be told from the map alone, so it needs no state of its own.

    Attributes:
        cold_start: Memories that are gathered before they are parted.
        parts: ... into at most so many clusters.
    """

    cold_start: int
    parts: int
    asks_slm: bool = False
    splits: bool = True

    def home(self, cluster_map: ClusterMap, candidates: Sequence[RoutingCandidate]) -> Home:
        """Choose the buffer, or the nearest centroid."""
        active = _active(cluster_map)
        if len(active) == 1:
            return Home(active[0], f"gathered with the first {self.cold_start} memories")
        if candidates:
            return Home(candidates[0].cluster, f"nearest centroid (cosine {candidates[0].cosine:.2f})")
        return Home(min(active, default=None), "no cluster has a centroid yet")

    def parting(self, cluster_map: ClusterMap) -> Parting | None:
        """Part the buffer once it is full."""
        active = _active(cluster_map)
        if len(active) != 1 or cluster_map.memory_count < self.cold_start or cluster_map.clusters[active[0]].pinned:
            return None
        closed = [e for e in sorted(cluster_map.cluster_episodes[active[0]]) if not cluster_map.episodes[e].open]
        if len(closed) < 2:
            return None
        part_of = k_means(np.stack([cluster_map.episode_centroids.get(e) for e in closed]), self.parts)
        groups = [
            [closed[row] for row in np.flatnonzero(part_of == part)] for part in range(int(part_of.max()) + 1)
        ]
        groups.sort(key=lambda group: (-len(group), group[0]))
        if len(groups) < 2:
            return None
        return Parting(active[0], groups[1:], f"the first {self.cold_start} memories were parted by k-means")


@dataclass(frozen=True, slots=True)
class OneCluster:
    """Everything in one cluster, of any size."""

    asks_slm: bool = False
    splits: bool = False

    def home(self, cluster_map: ClusterMap, candidates: Sequence[RoutingCandidate]) -> Home:  # noqa: ARG002
        """Choose the first cluster."""
        return Home(min(_active(cluster_map), default=None), "everything is in one cluster")

    def parting(self, cluster_map: ClusterMap) -> Parting | None:  # noqa: ARG002
        """Never."""
        return None


def strategy_of(config: OrganizeConfig) -> RoutingStrategy:
    """Return the strategy that the settings name."""
    match config.strategy:
        case Strategy.AGENTIC:
            return Nearest(config.cluster_cosine, asks_slm=True)
        case Strategy.COSINE:
            return Nearest(config.cluster_cosine, asks_slm=False)
        case Strategy.KMEANS:
            return KMeans(config.cold_start, config.cold_clusters)
        case Strategy.GLOBAL:
            return OneCluster()


def _active(cluster_map: ClusterMap) -> list[int]:
    return [n for n, cluster in cluster_map.clusters.items() if cluster.state is ClusterState.ACTIVE]
