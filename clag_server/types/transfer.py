"""Rows that come from another store (or an export of this one), as the domain and the catalog see them.

Numbers of clusters and episodes belong to the store that they come from; they are strings here, and become numbers
of ours when they are stored.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from clag_server.types.cluster import ClusterState
from clag_server.types.ingest import Rejection, StoredItem
from clag_server.types.memory import AnnotationSource, Memory, Vector
from clag_server.types.namespace import NamespaceSettings


class OnConflict(enum.IntEnum):
    """What happens to a row whose id is there (numbers as in `clag.v1.ImportConflict`)."""

    KEEP = 1
    REPLACE = 2


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """How rows are taken: what happens to ids that are there, and whether clusters and annotations are kept."""

    on_conflict: OnConflict = OnConflict.KEEP
    keep_organization: bool = False


@dataclass(frozen=True, slots=True)
class ImportedNamespace:
    """The namespace that the rows come from. `same_space`: embeddings of its rows are of our embedder's space."""

    settings: NamespaceSettings
    same_space: bool


@dataclass(frozen=True, slots=True)
class ImportedCluster:
    """A cluster's profile; its members come later and name it by `cluster_id`."""

    cluster_id: str
    title: str
    summary: str
    tags: tuple[str, ...]
    pinned: bool
    state: ClusterState
    profiled_by: AnnotationSource
    profile_stale: bool
    memory_count: int
    representative_ids: tuple[str, ...]
    create_time_ns: int
    update_time_ns: int


@dataclass(frozen=True, slots=True)
class ImportedMemory:
    """A memory with everything that was known of it.

    `memory` has neither key, revision, cluster nor episode of ours; its routing names clusters of the source by
    their numbers. `cluster_id` and `episode_id` are those of the source, "" for none. `lexical` are the index
    tokens, needed where the memory is placed at once.
    """

    memory: Memory
    cluster_id: str
    episode_id: str
    lexical: str


ImportRow: TypeAlias = ImportedNamespace | ImportedCluster | ImportedMemory | Rejection
"""A row that passed the rules, or the reason why it did not (it still takes its sequence number)."""


@dataclass(frozen=True, slots=True)
class ImportResult:
    """What one transaction stored: outcomes in order, the revision, and what mirrors must read again.

    `waiting` are keys of memories that are STORED now. `episodes_through` is the highest episode number given out
    (0 for none): some are reserved for memories that are not embedded yet.
    """

    items: Sequence[StoredItem]
    revision: int
    episodes: frozenset[int] = frozenset()
    clusters: frozenset[int] = frozenset()
    waiting: Sequence[int] = ()
    episodes_through: int = 0


@dataclass(frozen=True, slots=True)
class ReservedPlace:
    """Where a memory belongs that was imported without an embedding; the episode may not exist yet."""

    episode: int
    cluster: int


@dataclass(frozen=True, slots=True)
class EmbeddedMemory:
    """A memory (by key) that has its embedding now, with its index tokens."""

    key: int
    embedding: Vector
    lexical: str
