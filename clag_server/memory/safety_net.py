"""The safety net: the best matches by meaning and by words, wherever they are, join the candidates of stage two.

Over the nearest partitions for two-stage retrieval, over the whole namespace for GLOBAL (design, section 6.2).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clag_server.catalog.api import EpisodeMembers, LexicalHits
from clag_server.memory.candidates import NearClusters
from clag_server.memory.config import RetrieveConfig
from clag_server.memory.namespace import NamespaceState
from clag_server.memory.permitted import Permitted
from clag_server.types.memory import Vector
from clag_server.vectors.api import VectorHits

__all__ = ["SafetyNet"]

_GLOBAL_DENSE = 1000
_FEW_PERMITTED = 2_000
"""A filter that leaves no more: all are ranked, for few of the nearest would be permitted."""
_MOST_PERMITTED = 50_000
"""Most that are ranked so (75 MB); of a filter that leaves more, the nearest thousand hold enough."""
_SPARE = 32
"""Memories ranked beyond those asked for: some may have expired or been replaced."""


class SafetyNet:
    """The net of one question.

    Args:
        state: The namespace.
        permitted: What the question may see.
        config: How wide the net is.
        everywhere: Whether the whole namespace is searched.
    """

    def __init__(
        self, state: NamespaceState, permitted: Permitted, config: RetrieveConfig, *, everywhere: bool
    ) -> None:
        self._state = state
        self._permitted = permitted
        self._config = config
        self.everywhere = everywhere
        """Whether the whole namespace is searched."""

    async def search(self, vector: Vector, near: NearClusters | None) -> VectorHits | None:
        """Search the nearest partitions, or the whole namespace; None when there is no vector to search with.

        Args:
            vector: The query (dim,), a unit vector or zeros.
            near: The clusters near it, where they were looked for already.
        """
        state, config = self._state, self._config
        if not vector.any():
            return None
        clusters = None
        if not self.everywhere:
            large = state.map.memory_count > config.large_memories
            count = config.net_partitions_large if large else config.net_partitions
            nearest = near.clusters.tolist() if near else [n for n, _ in state.map.routable.nearest(vector, count)]
            clusters = nearest[:count]
            clusters += sorted(state.map.provisional | (state.map.archived - self._permitted.hidden))
        # Under a filter most hits may not be permitted: look deeper.
        deep = self.everywhere or self._permitted.matching is not None
        return await state.index.search(state.ns, clusters, vector, limit=_GLOBAL_DENSE if deep else config.net)

    async def members(
        self, found: VectorHits | None, hits: LexicalHits, inside: NDArray[np.int64], *, wanted: int
    ) -> EpisodeMembers:
        """Return the best dense and lexical matches outside the picked episodes.

        Args:
            found: What `search` found.
            hits: What the words match.
            inside: Keys of the picked episodes' members (n,).
            wanted: Hits that the question asks for.
        """
        state, permitted = self._state, self._permitted
        size = _GLOBAL_DENSE if self.everywhere else self._config.net
        keys: list[int] = [int(k) for k in hits.keys[permitted.keys(hits.keys)][:size]]
        if found is not None:
            current = await state.catalog.keys_of_placements(state.ns, [hit.placement_id for hit in found.hits])
            dense = [current[hit.placement_id] for hit in found.hits if hit.placement_id in current]
            allowed = permitted.keys(np.array(dense, dtype=np.int64))
            keys += [key for key, seen in zip(dense, allowed, strict=True) if seen][:size]
        if self.everywhere and permitted.matching is not None:
            # The nearest of all memories may hold few that are permitted: then those are ranked, not the nearest.
            few = len(permitted.matching.keys) <= _FEW_PERMITTED or len(set(keys)) < wanted + _SPARE
            keys += permitted.matching.keys[:_MOST_PERMITTED].tolist() if few else []
        known = set(inside.tolist())
        return await state.catalog.members_of(state.ns, [k for k in dict.fromkeys(keys) if k not in known])
