"""Placements the index does not have yet: kept in memory, searched by brute force, so a commit is found at once.

The overlay also is what the index worker writes from. Ops leave it only when they are durable in the backend and
visible to its searches, so a crash of the backend loses nothing that is searched here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clag_server.catalog.api import IndexOp
from clag_server.types.memory import Vector
from clag_server.vectors.api import VectorHit
from clag_server.vectors.topk import nearest

__all__ = ["Overlay", "OverlayView"]


@dataclass(frozen=True, slots=True)
class OverlayView:
    """What was pending for some clusters at one moment: rows to add to a search, and ids to take out of it."""

    ids: Sequence[int]
    vectors: Sequence[Vector]
    deleted: frozenset[int]

    def search(self, query: Vector, limit: int) -> list[VectorHit]:
        """Return the nearest pending rows. Blocks for about 1 ms per 2,000 rows: call it in an executor."""
        if not self.ids:
            return []
        return nearest(np.asarray(self.ids, dtype=np.int64), np.stack(self.vectors), query, limit)


class Overlay:
    """Pending ops in outbox order. For one event loop; no method blocks."""

    def __init__(self) -> None:
        self._ops: list[IndexOp] = []
        self._puts: dict[int, dict[int, Vector]] = {}
        self._deletes: dict[int, set[int]] = {}
        self.last_seq = -1
        """Newest op that was read from the outbox."""

    def __len__(self) -> int:
        return len(self._ops)

    def extend(self, ops: Sequence[IndexOp]) -> None:
        """Add ops that follow the last one; those that are here already are skipped."""
        for op in ops:
            if op.seq <= self.last_seq:
                continue
            self._ops.append(op)
            self.last_seq = op.seq
            if op.vector is not None:
                self._puts.setdefault(op.cluster, {})[op.placement_id] = op.vector
            elif not op.put:
                self._deletes.setdefault(op.cluster, set()).add(op.placement_id)

    def after(self, seq: int, limit: int) -> Sequence[IndexOp]:
        """Return up to `limit` ops that follow `seq`."""
        start = self._position(seq)
        return self._ops[start : start + limit]

    def count_after(self, seq: int) -> int:
        """Return how many ops follow `seq`."""
        return len(self._ops) - self._position(seq)

    def drop_through(self, seq: int) -> None:
        """Forget ops up to `seq`; later reads of the outbox start after it."""
        end = self._position(seq)
        for op in self._ops[:end]:
            self._forget(op)
        del self._ops[:end]
        self.last_seq = max(self.last_seq, seq)

    def view(self, clusters: Sequence[int] | None) -> OverlayView:
        """Return what is pending for the clusters (None: all)."""
        wanted_puts = self._puts if clusters is None else set(clusters) & self._puts.keys()
        wanted_deletes = self._deletes if clusters is None else set(clusters) & self._deletes.keys()
        deleted: frozenset[int] = frozenset().union(*(self._deletes[cluster] for cluster in wanted_deletes))
        rows = [
            (placement_id, vector)
            for cluster in wanted_puts
            for placement_id, vector in self._puts[cluster].items()
            if placement_id not in deleted
        ]
        return OverlayView([row[0] for row in rows], [row[1] for row in rows], deleted)

    def _position(self, seq: int) -> int:
        return bisect_right(self._ops, seq, key=lambda op: op.seq)

    def _forget(self, op: IndexOp) -> None:
        if op.vector is not None:
            rows = self._puts.get(op.cluster, {})
            rows.pop(op.placement_id, None)
            if not rows:
                self._puts.pop(op.cluster, None)
        elif not op.put:
            gone = self._deletes.get(op.cluster, set())
            gone.discard(op.placement_id)
            if not gone:
                self._deletes.pop(op.cluster, None)
