"""Editing clusters by hand, as the edge calls it: values in and out, and the errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from clag_server.memory.service import ClusterView
from clag_server.types.cluster import ClusterField, ClusterHistoryEntry


@dataclass(frozen=True, slots=True)
class EditOptions:
    """What all edits have in common.

    Attributes:
        request_id: Makes retries safe for 24 hours; "" for none.
        digest: Hash of the request, to tell a retry from another request under the same id.
        preview: Whether the edit is only checked and previewed.
        etag: Must be that of the edited cluster; "" for any.
    """

    request_id: str = ""
    digest: bytes = b""
    preview: bool = False
    etag: str = ""


@dataclass(frozen=True, slots=True)
class Edited:
    """What came out of an edit: the clusters concerned, how many memories moved, and the revision (preview: 0)."""

    clusters: Sequence[ClusterView]
    moved: int
    revision: int


@dataclass(frozen=True, slots=True)
class ProfileChange:
    """New values of the `fields` of a cluster's profile (an empty one hands it back to the server), and its pin."""

    fields: frozenset[ClusterField]
    title: str = ""
    summary: str = ""
    tags: tuple[str, ...] = ()
    pinned: bool | None = None


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """Memories that become a cluster of their own; an empty title lets the server name it."""

    title: str
    memory_ids: tuple[str, ...]


class ClusterService(Protocol):
    """Edits of clusters by people and programs that know better.

    All raise NotFound, EtagMismatch, RequestIdReused, and ClusterStateError where a cluster or memory is in no
    state for the edit. Ids of memories stay valid through every edit.
    """

    async def update(self, namespace: str, cluster: int, change: ProfileChange, options: EditOptions) -> Edited:
        """Rename, re-describe, pin or unpin a cluster."""

    async def merge(self, namespace: str, target: int, sources: Sequence[int], options: EditOptions) -> Edited:
        """Move all that is in the sources into the target and remove the sources."""

    async def split_into(self, namespace: str, cluster: int, parts: int, options: EditOptions) -> Edited:
        """Split a cluster by likeness; it keeps its number as the largest part."""

    async def split_off(
        self, namespace: str, cluster: int, groups: Sequence[MemoryGroup], options: EditOptions
    ) -> Edited:
        """Make each group of a cluster's memories a cluster of its own; the rest stays."""

    async def move(self, namespace: str, target: int, memory_ids: Sequence[str], options: EditOptions) -> Edited:
        """Move memories to another cluster."""

    async def archive(self, namespace: str, cluster: int, archived: bool, options: EditOptions) -> Edited:
        """Take a cluster out of default retrieval, or back into it."""

    async def history(
        self, namespace: str, cluster: int, *, before: int | None, limit: int
    ) -> Sequence[ClusterHistoryEntry]:
        """Page through what happened to a cluster, newest first."""
