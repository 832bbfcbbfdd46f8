"""Steps that edits of clusters are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from clag_server.catalog.api import Catalog
from clag_server.memory.cluster_service import ProfileChange
from clag_server.memory.edit_draft import EditDraft, closed_centroids
from clag_server.memory.splitting import parts_of
from clag_server.types.cluster import Cluster, ClusterEvent, ClusterField, ClusterNote
from clag_server.types.errors import ClusterStateError


def written(cluster: Cluster, change: ProfileChange) -> Cluster:
    """Return a cluster with what a client wrote; a field that is emptied is the server's to write again."""
    values = {
        ClusterField.TITLE: change.title,
        ClusterField.SUMMARY: change.summary,
        ClusterField.TAGS: change.tags,
    }
    kept = {name for name in change.fields if values[name]}
    given_back = change.fields - kept
    return replace(
        cluster,
        title=change.title if ClusterField.TITLE in kept else cluster.title,
        summary=change.summary if ClusterField.SUMMARY in kept else cluster.summary,
        tags=change.tags if ClusterField.TAGS in kept else cluster.tags,
        pinned=cluster.pinned if change.pinned is None else change.pinned,
        client_fields=(cluster.client_fields | kept) - given_back,
        profile_stale=cluster.profile_stale or bool(given_back),
    )


async def part_by_likeness(draft: EditDraft, catalog: Catalog, ns: int, cluster: int, parts: int) -> list[int]:
    """Draft a split of a cluster into `parts`; returns the numbers of the new clusters.

    Whole episodes part where there are enough that differ, single memories otherwise.

    Raises:
        ClusterStateError: what is in the cluster cannot be parted so.
    """
    reason = f"cluster c{cluster} was split by hand"
    episodes, centroids = closed_centroids(draft.cluster_map, cluster)
    groups = parts_of(centroids, parts) if len(episodes) >= parts else None
    if groups is not None:
        born = [draft.found("") for _ in groups[1:]]
        for number, group in zip(born, groups[1:], strict=True):
            for row in group:
                draft.move_episode(episodes[int(row)], number, reason)
        return born
    members = await catalog.episode_members(ns, sorted(draft.cluster_map.cluster_episodes[cluster]))
    groups = parts_of(members.vectors, parts) if len(members.keys) >= parts else None
    if groups is None:
        raise ClusterStateError(
            f"cluster c{cluster} holds {len(members.keys)} memories that cannot be parted into {parts} by likeness"
        )
    born = [draft.found("") for _ in groups[1:]]
    for number, group in zip(born, groups[1:], strict=True):
        keys = [int(key) for key in np.sort(members.keys[group])]
        draft.move_memories(await catalog.memories(ns, keys, embeddings=True), number, reason)
    return born


def group_notes(draft: EditDraft, cluster: int, born: Sequence[int]) -> list[ClusterNote]:
    """Return what history says of a split, of the cluster and of each that was born."""
    parts = [
        ClusterNote(
            number,
            ClusterEvent.FOUNDED,
            f"split off cluster c{cluster} by hand",
            (cluster,),
            draft.cluster(number).memory_count,
            new_title=draft.cluster(number).title,
        )
        for number in born
    ]
    return [ClusterNote(cluster, ClusterEvent.SPLIT, "split by hand", tuple(born), draft.moved), *parts]
