"""What a catalog is given and gives back: rows and counts as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clag_server.types.memory import AnnotationSource, Link, Matrix, Memory, MemoryState, Vector
from clag_server.types.namespace import NamespaceSettings

__all__ = [
    "EmbedderPin",
    "EpisodeMembers",
    "Evolution",
    "FailedTask",
    "IndexHead",
    "IndexOp",
    "LexicalHits",
    "MatchingKeys",
    "MemoryPage",
    "Namespace",
    "NamespaceStats",
    "Waiting",
]


@dataclass(frozen=True, slots=True)
class EmbedderPin:
    """The embedding space of a namespace: model name, fingerprint of its weights, and dimension."""

    name: str
    fingerprint: str
    dim: int


@dataclass(frozen=True, slots=True)
class Namespace:
    """One isolated pool of memories. `ns` is its integer in the catalog and in every index.

    `next_cluster` and `next_episode` are above every number that was ever written, also of what is removed since;
    they are those of the moment of reading. `revision` is that of the last change of the settings (0: they are as
    they were when it came into being by itself), `update_time_ns` its time. Writes to one that is `deleting` raise
    NamespaceDeleted; it can still be read.
    """

    ns: int
    name: str
    embedder: EmbedderPin
    create_time_ns: int
    next_cluster: int
    next_episode: int
    settings: NamespaceSettings = field(default_factory=NamespaceSettings)
    update_time_ns: int = 0
    revision: int = 0
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class Evolution:
    """What localized evolution changes on one memory; None leaves a field as it is. Text is never changed.

    `cause` is the memory (key) whose arrival caused the change; it equals `key` for a memory's own annotation.
    History keeps the old values and the name of the `model` that was used ("" for none). Nothing is applied when
    the memory no longer is in `cluster`. A first CONTRADICTS link to a newer memory lowers the confidence
    (`types.memory.CONTRADICTED`); it is given back when that link goes.
    """

    key: int
    cluster: int
    cause: int
    context: str | None = None
    keywords: tuple[str, ...] | None = None
    evolved_tags: tuple[str, ...] | None = None
    add_links: tuple[Link, ...] = ()
    confidence: float | None = None
    superseded_by: str | None = None
    annotated_by: AnnotationSource | None = None
    state: MemoryState | None = None
    model: str = ""


@dataclass(frozen=True, slots=True)
class LexicalHits:
    """Lexical matches, best first: three aligned arrays; BM25 scores are higher for better matches."""

    keys: NDArray[np.int64]
    episodes: NDArray[np.int64]
    scores: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MatchingKeys:
    """Memories that match a filter, by ascending key: two aligned arrays."""

    keys: NDArray[np.int64]
    episodes: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EpisodeMembers:
    """Members of some episodes, by episode then position: aligned arrays, vectors (n, dim), speakers strings."""

    keys: NDArray[np.int64]
    episodes: NDArray[np.int64]
    positions: NDArray[np.int64]
    vectors: Matrix
    speakers: NDArray[np.object_]


@dataclass(frozen=True, slots=True)
class MemoryPage:
    """One page in ascending key order; `next_after` is the key to continue after, None at the end."""

    memories: Sequence[Memory]
    next_after: int | None


@dataclass(frozen=True, slots=True)
class FailedTask:
    """A memory's failed attempt at leaving `state`. `quarantined` says that it will not be tried again."""

    key: int
    attempts: int
    quarantined: bool


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is known of the memories that wait in one state.

    `retrying` of them failed and are tried again, the last time with `last_error`. `oldest_ns` is since when the
    first of them waits, None when none does.
    """

    retrying: int = 0
    oldest_ns: int | None = None
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class NamespaceStats:
    """Counters of one namespace, from the catalog's rows.

    `clusters` are the active ones, `placed` the memories that have a placement, `share` is the namespace's part of
    all memories of the catalog (0 to 1). `created`, `duplicates`, `rejected` and `deleted` count since it exists.
    """

    by_state: Mapping[MemoryState, int]
    waiting: Mapping[MemoryState, Waiting]
    clusters: int
    archived_clusters: int
    episodes: int
    open_episodes: int
    placed: int
    index_backlog: int
    created: int
    duplicates: int
    rejected: int
    deleted: int
    share: float
    revision: int


@dataclass(frozen=True, slots=True)
class IndexOp:
    """One step for the vector index, in `seq` order. PUT has a vector; DELETE names the partition it is in.

    `placement_id` is unique for ever over all namespaces: a memory that moves gets a new one.
    """

    seq: int
    put: bool
    placement_id: int
    cluster: int
    event_time_ns: int
    vector: Vector | None


class IndexHead(NamedTuple):
    """The end of an outbox, and what is placed at that moment.

    `seq` is the newest op ever written, `placed` the number of current placements, `digest` their digest
    (`types.digest`). Current as of an older op is what it takes to undo the ops since: a PUT's placement is part of
    it until its DELETE, also where the PUT has no vector any more.
    """

    seq: int
    placed: int
    digest: int
