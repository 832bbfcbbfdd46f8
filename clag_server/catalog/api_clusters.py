"""What a catalog promises to those who edit clusters: by hand, by re-organization, by an SLM's late vote."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from clag_server.types.cluster import ClusterHistoryEntry, PlacementPlan
from clag_server.types.memory import Memory


@dataclass(frozen=True, slots=True)
class EditAnswer:
    """What an edit with a request id answers, to be found again by its retries.

    `digest` is a hash of the request; `text` is the caller's own.
    """

    request_id: str
    digest: bytes
    text: str


class ClusterEdits(Protocol):
    """Edits of clusters: one transaction each, with history."""

    async def edit_clusters(self, ns: int, plan: PlacementPlan, *, answer: EditAnswer | None, now_ns: int) -> int:
        """Apply a plan and keep the answer for retries, in one transaction; returns the revision.

        Memories that the plan's placements take to another cluster get a history entry. Raises RequestIdReused
        when the answer's request id is known already, and what `Catalog.apply_plan` raises.
        """

    async def edit_answer(self, ns: int, request_id: str, digest: bytes) -> str | None:
        """Return the text of an earlier answer, None when there is none. Raises RequestIdReused."""

    async def cluster_history(
        self, ns: int, cluster: int, *, before: int | None, limit: int
    ) -> Sequence[ClusterHistoryEntry]:
        """Page through what happened to a cluster, newest first, also to one that is gone."""

    async def last_access(self, ns: int, clusters: Sequence[int]) -> Mapping[int, int]:
        """Return when a member of each cluster was last given in an answer (nanoseconds); absent for none."""

    async def memories_by_id(
        self, ns: int, memory_ids: Sequence[str], *, embeddings: bool = False
    ) -> Sequence[Memory]:
        """Return those that exist, in the order asked."""

    async def undecided_episodes(self, ns: int, *, after: int, limit: int) -> Sequence[int]:
        """Return episodes above `after` that have members whose routing awaits the SLM, ascending."""

    async def undecided_namespaces(self) -> Collection[int]:
        """Return the namespaces that have such episodes."""
