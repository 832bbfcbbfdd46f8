"""What a vector index promises. Every implementation passes `tests/vectors` (the conformance suite).

The index is fed by the catalog's outbox (`catalog.api.IndexFeed`) and holds nothing the catalog lacks: it can be
dropped and rebuilt at any time. Reads overlay placements that are not applied yet, so a committed placement is
found at once. Scores are cosines of unit vectors.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from clag_server.types.memory import Vector


class IndexState(enum.Enum):
    """READY serves from Milvus; REBUILDING and DEGRADED serve what they can and say so."""

    STARTING = "starting"
    READY = "ready"
    REBUILDING = "rebuilding"
    DEGRADED = "degraded"


@dataclass(frozen=True, slots=True)
class IndexStatus:
    """State of the index, why, and how far a rebuild is (rows)."""

    state: IndexState
    reason: str
    done: int
    total: int
    pending_ops: int


@dataclass(frozen=True, slots=True)
class VectorHit:
    """A placement and its cosine with the query. It may be stale: the catalog says which are current."""

    placement_id: int
    score: float


@dataclass(frozen=True, slots=True)
class VectorHits:
    """Hits best first (ties by placement id). `complete` is False when some partitions could not be searched."""

    hits: Sequence[VectorHit]
    complete: bool


class VectorIndex(Protocol):
    """Partition search over the placements of all namespaces."""

    async def start(self) -> None:
        """Start the backend and the workers; returns at once, the index loads behind (see `status`)."""

    async def stop(self) -> None:
        """Apply what is queued within a bounded time, flush, and stop the backend."""

    def notify(self, ns: int, dim: int) -> None:
        """Say that the catalog's outbox has new ops for the namespace (cheap; called after each commit)."""

    async def search(self, ns: int, clusters: Sequence[int] | None, vector: Vector, *, limit: int) -> VectorHits:
        """Search the partitions of `clusters` (None: the whole namespace)."""

    async def drop(self, ns: int) -> None:
        """Drop everything of a namespace; named again, it is rebuilt from the catalog."""

    async def rebuild(self, ns: int, dim: int) -> None:
        """Have a namespace rebuilt from the catalog; returns at once, `settle` waits for it."""

    async def settle(self, ns: int) -> None:
        """Wait until a namespace that was named before is READY and holds all that was announced."""

    def namespace_status(self, ns: int) -> IndexStatus:
        """The state of one namespace."""

    def status(self) -> IndexStatus:
        """The state of the backend as a whole."""
