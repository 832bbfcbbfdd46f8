"""Clusters from domain to protobuf."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
from clag.v1 import types_pb2

from clag_server.api.convert_values import cluster_id, revision, time_to
from clag_server.memory.cluster_views import cluster_etag
from clag_server.memory.service import ClusterView
from clag_server.types.cluster import ClusterField
from clag_server.types.memory import Vector

if TYPE_CHECKING:
    from clag.v1.types_pb2 import AnnotationSource, ClusterState

__all__ = ["cluster_to"]


def cluster_to(namespace: str, view: ClusterView) -> types_pb2.Cluster:
    """The message of a cluster."""
    cluster = view.cluster
    return types_pb2.Cluster(
        cluster_id=cluster_id(cluster.cluster),
        title=cluster.title,
        summary=cluster.summary,
        tags=cluster.tags,
        pinned=cluster.pinned,
        state=cast("ClusterState.ValueType", int(cluster.state)),
        memory_count=cluster.memory_count,
        episode_count=view.episodes,
        representative_ids=view.representative_ids,
        cohesion=_cohesion(cluster.vector_sum, cluster.closed_episodes),
        profile_stale=cluster.profile_stale,
        create_time=time_to(cluster.create_time_ns),
        update_time=time_to(cluster.update_time_ns),
        # Every memory that comes in moves the cluster's update time; retrievals are not counted a cluster yet.
        last_activity_time=time_to(cluster.update_time_ns),
        profiled_by=cast(
            "AnnotationSource.ValueType",
            0 if ClusterField.TITLE in cluster.client_fields else int(cluster.profiled_by),
        ),
        etag=cluster_etag(cluster),
        revision=revision(namespace, cluster.revision),
    )


def _cohesion(vector_sum: Vector, closed_episodes: int) -> float:
    """Mean cosine of the closed episodes' unit centroids and the cluster's: the length of their mean."""
    return float(np.linalg.norm(vector_sum)) / closed_episodes if closed_episodes else 0.0
