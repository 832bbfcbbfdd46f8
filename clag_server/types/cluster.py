"""Episodes, clusters and the plans that place memories in them.

An episode is a run of consecutive memories of one session; a cluster holds episodes and is one Milvus partition
(design: episodes choose, clusters store). Both are numbered within their namespace by the domain, never reused.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from clag_server.types.change import HistoryCause
from clag_server.types.memory import AnnotationSource, MemoryState, RoutingDecision, Vector


class ClusterState(enum.IntEnum):
    """Numbers as in `clag.v1.Cluster.State`."""

    ACTIVE = 1
    ARCHIVED = 2


class ClusterField(enum.StrEnum):
    """A part of a cluster's profile that a client may write."""

    TITLE = "title"
    SUMMARY = "summary"
    TAGS = "tags"


class ClusterEvent(enum.IntEnum):
    """What happens to a cluster (numbers as in `clag.v1.ClusterEvent`)."""

    FOUNDED = 1
    PROFILE = 2
    MERGED = 3
    SPLIT = 4
    MOVED = 5
    ARCHIVED = 6
    RESTORED = 7
    PINNED = 8


@dataclass(frozen=True, slots=True)
class ClusterNote:
    """One thing that happens to a cluster: the other clusters and the number of memories concerned, and why."""

    cluster: int
    event: ClusterEvent
    reason: str
    others: tuple[int, ...] = ()
    memories: int = 0
    operation_id: str = ""
    old_title: str = ""
    new_title: str = ""


@dataclass(frozen=True, slots=True)
class ClusterHistoryEntry:
    """A note as it was written down."""

    note: ClusterNote
    time_ns: int
    revision: int


@dataclass(frozen=True, slots=True)
class Cluster:
    """One cluster. `vector_sum` is the sum of the closed episodes' unit centroids (zero while none closed).

    `closed_episodes` counts the terms of that sum; a cluster without one is provisional: it holds only open
    episodes and is no candidate for routing. `representatives` are memory keys nearest the centroid.
    `client_fields` are those that a client wrote, which the server leaves alone; `profiled_by` made the others.
    """

    cluster: int
    title: str
    summary: str
    tags: tuple[str, ...]
    representatives: tuple[int, ...]
    vector_sum: Vector
    closed_episodes: int
    memory_count: int
    state: ClusterState
    pinned: bool
    profile_stale: bool
    profile_count: int
    create_time_ns: int
    update_time_ns: int
    revision: int = 0
    client_fields: frozenset[ClusterField] = frozenset()
    profiled_by: AnnotationSource = AnnotationSource.NONE


@dataclass(frozen=True, slots=True)
class Episode:
    """A run of one session's memories. `vector_sum` is the sum of its members' unit vectors."""

    episode: int
    session_id: str
    cluster: int
    vector_sum: Vector
    memory_count: int
    first_position: int
    last_position: int
    open: bool
    last_time_ns: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Put one memory (by key) into an episode and cluster, embedded by `embedding`; it becomes `state`.

    `lexical` are the space-joined index tokens of the memory (see `memory.lexical`).
    """

    key: int
    episode: int
    cluster: int
    embedding: Vector
    lexical: str
    routing: RoutingDecision
    state: MemoryState


@dataclass(frozen=True, slots=True)
class Move:
    """Move all members of an episode to `cluster`, under one routing decision; history tells the `cause`.

    `again`: they come among memories that they have not met, so those that had evolved go back to ROUTED, to evolve
    once more (`RoutingDecision.evolve_again`).
    """

    episode: int
    cluster: int
    routing: RoutingDecision
    cause: HistoryCause = HistoryCause.ROUTING
    again: bool = False


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """One atomic change of placements. Applied in the order of the fields, in one catalog transaction.

    Clusters and episodes are upserted whole (the domain is their only writer); `removed_clusters` must be empty
    of memories after the moves. `routed_episodes` take their members' state from EMBEDDED to ROUTED with the
    decision given (moves do so too). `notes` go into the history of clusters.
    """

    clusters: Sequence[Cluster] = ()
    episodes: Sequence[Episode] = ()
    placements: Sequence[Placement] = ()
    moves: Sequence[Move] = ()
    routed_episodes: Sequence[Move] = ()
    removed_clusters: Sequence[int] = ()
    notes: Sequence[ClusterNote] = ()
