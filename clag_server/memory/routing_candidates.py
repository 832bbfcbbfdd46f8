"""Which clusters are weighed for an episode: the nearest by centroid; once it is placed, its own among them."""

from __future__ import annotations

from dataclasses import dataclass

from clag_server.memory.centroids import unit
from clag_server.memory.cluster_map import ClusterMap
from clag_server.memory.config import OrganizeConfig
from clag_server.memory.weighing import z_scores
from clag_server.types.cluster import ClusterState, Episode
from clag_server.types.memory import RoutingCandidate, Vector


@dataclass(frozen=True, slots=True)
class Choice:
    """What the SLM is asked to weigh for an episode that the vectors have placed.

    Attributes:
        candidates: Clusters with their cosines, best first; that of the episode is among them.
        own: The episode's cluster.
        alone: Whether the episode is all that its cluster is known by. Then the candidate `own` stands for a
            cluster of its own, and its cosine is the one at which the vectors would have found another near enough.
    """

    candidates: tuple[RoutingCandidate, ...]
    own: int
    alone: bool


def nearest_clusters(
    cluster_map: ClusterMap, config: OrganizeConfig, vector: Vector
) -> tuple[RoutingCandidate, ...]:
    """Return the nearest routable clusters of a unit vector (dim,), best first."""
    center = cluster_map.episode_center(config.cluster_center_prior)
    return _candidates(cluster_map, cluster_map.routable.nearest_centred(vector, center, config.candidates))


def choice_for(cluster_map: ClusterMap, config: OrganizeConfig, episode: Episode) -> Choice | None:
    """Return what there is to choose for a closed episode; None where nothing is.

    The episode's own part in its cluster's centroid is taken out first: it must not speak for itself. Nothing is
    chosen for an episode in a cluster that a client pinned or archived, or that is gone since the episode was read.
    """
    own = cluster_map.clusters.get(episode.cluster)
    if own is None or own.pinned or own.state is not ClusterState.ACTIVE:
        return None
    vector = unit(episode.vector_sum)
    center = cluster_map.episode_center(config.cluster_center_prior)
    alone = own.closed_episodes <= 1
    if alone:
        cosine, least = config.cluster_cosine, config.pull_cosine
    else:
        rest = unit(own.vector_sum - vector)
        cosine, least = float(unit(rest - center) @ unit(vector - center)), -1.0
    others = [
        (number, score)
        for number, score in cluster_map.routable.nearest_centred(vector, center, config.candidates + 1)
        if number != own.cluster and score >= least
    ]
    if not others:
        return None
    room = config.candidates if alone else config.candidates - 1
    near = sorted([(own.cluster, cosine), *others[:room]], key=lambda one: (-one[1], one[0]))
    return Choice(_candidates(cluster_map, near), own.cluster, alone) if len(near) > 1 else None


def _candidates(cluster_map: ClusterMap, near: list[tuple[int, float]]) -> tuple[RoutingCandidate, ...]:
    return tuple(
        RoutingCandidate(number, cluster_map.clusters[number].title, cosine, channel=None, combined=score)
        for (number, cosine), score in zip(near, z_scores([cosine for _, cosine in near]), strict=True)
    )
