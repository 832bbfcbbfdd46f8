"""What a question may see: the memories that its filter leaves, outside archived clusters that it does not search.

Filters apply before ranking: what is not permitted is neither scored nor counted nor ranked (design, section 6.3).
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clag_server.catalog.api import EpisodeMembers, MatchingKeys
from clag_server.memory.cluster_map import ClusterMap

__all__ = ["Permitted"]


@dataclass(frozen=True, slots=True)
class Permitted:
    """What one question may see.

    Attributes:
        cluster_map: The namespace.
        matching: Memories that the filter leaves; None without a filter.
        hidden: Archived clusters that the question does not search.
    """

    cluster_map: ClusterMap
    matching: MatchingKeys | None = None
    hidden: AbstractSet[int] = frozenset()

    @property
    def episodes(self) -> NDArray[np.int64] | None:
        """The episode of each memory that the filter leaves; None without a filter."""
        return None if self.matching is None else self.matching.episodes

    def keys(self, keys: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each key (n,) whether the filter leaves it."""
        if self.matching is None:
            return np.ones(len(keys), dtype=np.bool_)
        return np.isin(keys, self.matching.keys)

    def clusters(self, clusters: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each cluster (n,) whether it is searched."""
        if not self.hidden:
            return np.ones(len(clusters), dtype=np.bool_)
        return ~np.isin(clusters, list(self.hidden))

    def members(self, members: EpisodeMembers) -> EpisodeMembers:
        """Leave out what the filter or an archived cluster forbids."""
        keep = self.keys(members.keys)
        if self.hidden:
            keep &= np.array([self._searched(int(e)) for e in members.episodes], dtype=np.bool_)
        return EpisodeMembers(
            members.keys[keep],
            members.episodes[keep],
            members.positions[keep],
            members.vectors[keep],
            members.speakers[keep],
        )

    def archived_episodes(self) -> NDArray[np.int64]:
        """Return the episodes of archived clusters that the question searches: centroids do not lead to them."""
        shown = self.cluster_map.archived - self.hidden
        found = (e for n in shown for e in self.cluster_map.cluster_episodes.get(n, ()))
        return np.array(sorted(found), dtype=np.int64)

    def _searched(self, episode: int) -> bool:
        known = self.cluster_map.episodes.get(episode)
        return known is None or known.cluster not in self.hidden
