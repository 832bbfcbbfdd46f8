"""A catalog's index feed in memory: ordered, durable as long as it lives, honest about what it forgot."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from clag_server.catalog.api import IndexHead, IndexOp
from clag_server.types.digest import placements_digest
from clag_server.types.memory import Vector

DIM = 16


def unit(seed: int, dim: int = DIM) -> Vector:
    """A random direction that is the same for the same seed."""
    vector = np.random.default_rng(seed).standard_normal(dim).astype(np.float32)
    scaled: Vector = vector / np.linalg.norm(vector)
    return scaled


@dataclass
class _Namespace:
    outbox: list[IndexOp] = field(default_factory=list)
    current: dict[int, IndexOp] = field(default_factory=dict)
    newest_seq: int = 0
    acked: int = 0


class MemoryFeed:
    """Implements `catalog.api.IndexFeed`; `put`, `move` and `delete` are the commits of a catalog."""

    def __init__(self, catalog_id: str = "") -> None:
        self._catalog_id = catalog_id or secrets.token_hex(8)
        self._namespaces: dict[int, _Namespace] = {}
        self._placement_ids = 0
        self.reads_of_placements = 0

    # --- commits
    def put(self, ns: int, cluster: int, vector: Vector) -> int:
        """Place a memory; returns its placement id."""
        self._placement_ids += 1
        namespace = self._of(ns)
        namespace.newest_seq += 1
        op = IndexOp(
            seq=namespace.newest_seq,
            put=True,
            placement_id=self._placement_ids,
            cluster=cluster,
            event_time_ns=self._placement_ids,
            vector=vector,
        )
        namespace.outbox.append(op)
        namespace.current[op.placement_id] = op
        return op.placement_id

    def delete(self, ns: int, placement_id: int) -> None:
        """Take a memory out."""
        namespace = self._of(ns)
        old = namespace.current.pop(placement_id)
        namespace.newest_seq += 1
        namespace.outbox.append(
            IndexOp(
                seq=namespace.newest_seq,
                put=False,
                placement_id=placement_id,
                cluster=old.cluster,
                event_time_ns=old.event_time_ns,
                vector=None,
            )
        )

    def move(self, ns: int, placement_id: int, cluster: int) -> int:
        """Place a memory anew in another cluster; returns the new placement id."""
        vector = self._of(ns).current[placement_id].vector
        assert vector is not None
        new = self.put(ns, cluster, vector)
        self.delete(ns, placement_id)
        return new

    # --- what a test may look at
    def current_ids(self, ns: int) -> set[int]:
        return set(self._of(ns).current)

    def cluster_of(self, ns: int, placement_id: int) -> int:
        return self._of(ns).current[placement_id].cluster

    def unacknowledged(self, ns: int) -> int:
        return len(self._of(ns).outbox)

    # --- IndexFeed
    async def read_index_ops(self, ns: int, *, after: int, limit: int) -> Sequence[IndexOp]:
        await asyncio.sleep(0)
        namespace = self._of(ns)
        ops = [op for op in namespace.outbox if op.seq > after][:limit]
        return [op if op.placement_id in namespace.current else replace(op, vector=None) for op in ops]

    async def ack_index_ops(self, ns: int, *, through: int) -> None:
        await asyncio.sleep(0)
        namespace = self._of(ns)
        assert through <= namespace.newest_seq, "acknowledged what was never written"
        namespace.acked = max(namespace.acked, through)
        namespace.outbox = [op for op in namespace.outbox if op.seq > through]

    async def current_placements(self, ns: int, *, after: int, limit: int) -> Sequence[IndexOp]:
        await asyncio.sleep(0)
        self.reads_of_placements += 1
        rows = sorted(row for row in self._of(ns).current if row > after)[:limit]
        return [
            IndexOp(
                seq=row,
                put=True,
                placement_id=row,
                cluster=self._of(ns).current[row].cluster,
                event_time_ns=self._of(ns).current[row].event_time_ns,
                vector=self._of(ns).current[row].vector,
            )
            for row in rows
        ]

    async def placements_in(self, ns: int, clusters: Sequence[int]) -> Sequence[IndexOp]:
        wanted = set(clusters)
        every = await self.current_placements(ns, after=0, limit=1_000_000)
        return [op for op in every if op.cluster in wanted]

    async def index_head(self, ns: int) -> IndexHead:
        await asyncio.sleep(0)
        namespace = self._of(ns)
        placed = list(namespace.current.values())
        digest = placements_digest([op.placement_id for op in placed], [op.cluster for op in placed])
        return IndexHead(namespace.newest_seq, len(placed), digest)

    @property
    def catalog_id(self) -> str:
        return self._catalog_id

    def _of(self, ns: int) -> _Namespace:
        return self._namespaces.setdefault(ns, _Namespace())
