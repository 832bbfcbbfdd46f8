"""Clusters as callers see them: with the ids of their representatives, and an etag."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from clag_server.catalog.api import Catalog
from clag_server.memory.namespace import NamespaceState
from clag_server.memory.service import ClusterView
from clag_server.types.cluster import Cluster


def cluster_etag(cluster: Cluster) -> str:
    """Return a tag that changes with profile, state and pin, and not with every memory that comes in."""
    seen = [cluster.title, cluster.summary, list(cluster.tags), int(cluster.state), cluster.pinned]
    text = json.dumps(seen, ensure_ascii=True).encode()
    return hashlib.blake2b(text, digest_size=8).hexdigest()


async def views(catalog: Catalog, state: NamespaceState, clusters: Sequence[Cluster]) -> list[ClusterView]:
    """Return views of clusters of one namespace, in the order given."""
    keys = sorted({key for cluster in clusters for key in cluster.representatives})
    ids = {memory.key: memory.memory_id for memory in await catalog.memories(state.ns, keys)}
    return [
        ClusterView(
            cluster=cluster,
            representative_ids=tuple(ids[key] for key in cluster.representatives if key in ids),
            episodes=len(state.map.cluster_episodes.get(cluster.cluster, ())),
        )
        for cluster in clusters
    ]
