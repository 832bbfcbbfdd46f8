"""A vector index that scans the catalog's current placements: exact, slow, and honest about freshness."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clag_server.catalog.api import IndexFeed
from clag_server.types.memory import Vector
from clag_server.vectors.api import IndexState, IndexStatus, VectorHit, VectorHits


class ScanIndex:
    """Implements `VectorIndex` by reading everything for each search."""

    def __init__(self, feed: IndexFeed) -> None:
        self._feed = feed

    async def start(self) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        """Nothing to stop."""

    def notify(self, ns: int, dim: int) -> None:
        """Nothing is kept, so nothing is stale."""

    async def search(self, ns: int, clusters: Sequence[int] | None, vector: Vector, *, limit: int) -> VectorHits:
        ops = list(await self._feed.current_placements(ns, after=0, limit=1_000_000))
        wanted = [op for op in ops if op.vector is not None and (clusters is None or op.cluster in clusters)]
        scores = [float(np.dot(op.vector, vector)) for op in wanted if op.vector is not None]
        order = sorted(range(len(wanted)), key=lambda i: (-scores[i], wanted[i].placement_id))[:limit]
        return VectorHits([VectorHit(wanted[i].placement_id, scores[i]) for i in order], complete=True)

    async def drop(self, ns: int) -> None:
        """Nothing is kept."""

    async def rebuild(self, ns: int, dim: int) -> None:
        """Nothing is kept, so there is nothing to rebuild."""

    async def settle(self, ns: int) -> None:
        """Always settled."""

    def namespace_status(self, ns: int) -> IndexStatus:
        return self.status()

    def status(self) -> IndexStatus:
        return IndexStatus(IndexState.READY, "", 0, 0, 0)
