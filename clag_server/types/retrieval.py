"""Values of the retrieval path: the query, and the stages in which its answer comes."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from clag_server.types.filters import Filter
from clag_server.types.memory import FallbackCause, Memory, Vector


class RetrieveMode(enum.IntEnum):
    """Numbers as in `clag.v1.RetrievalMode`: two stages, or the whole namespace at once for comparison."""

    TWO_STAGE = 1
    GLOBAL = 2


class SlmUse(enum.IntEnum):
    """Numbers as in `clag.v1.SlmUse`: AUTO asks the SLM where its competence probe allows it."""

    AUTO = 1
    ALWAYS = 2
    NEVER = 3


class ContextFormat(enum.IntEnum):
    """Numbers as in `clag.v1.ContextFormat`."""

    PLAIN = 1
    MARKDOWN = 2
    CHAT_MESSAGES = 3
    JSON = 4


class DegradationKind(enum.IntEnum):
    """What was skipped or missing (numbers as in `clag.v1.DegradationKind`)."""

    SLM_UNAVAILABLE = 1
    SLM_SKIPPED = 2
    NET_SKIPPED = 3
    DENSE_UNAVAILABLE = 4
    LEXICAL_UNAVAILABLE = 5
    INDEX_REBUILDING = 6
    QUERY_TRUNCATED = 7
    CONTEXT_SKIPPED = 8


@dataclass(frozen=True, slots=True)
class Degradation:
    """One thing that was skipped or missing, with a sentence for people."""

    kind: DegradationKind
    detail: str


@dataclass(frozen=True, slots=True)
class RetrieveQuery:
    """One question. Zero means the server's default for every count; `fresh_revision` 0 asks for no wait.

    `context_tokens` 0 asks for no context. `text` may be empty when a vector is given and the other way round.
    `deadline_s` is how many seconds are left for it when it is handed over; None waits as long as it takes.
    """

    namespace: str
    text: str
    vector: Vector | None = None
    where: Filter | None = None
    session_id: str = ""
    mode: RetrieveMode = RetrieveMode.TWO_STAGE
    slm_use: SlmUse = SlmUse.AUTO
    task_hint: str = ""
    max_clusters: int = 0
    max_memories: int = 0
    context_tokens: int = 0
    context_format: ContextFormat = ContextFormat.PLAIN
    min_score: float | None = None
    include_superseded: bool = False
    include_archived: bool = False
    include_embeddings: bool = False
    explain: bool = False
    fresh_revision: int = 0
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """How much was looked at (`clag.v1.SearchSpace`); memories are counted unless the name says otherwise."""

    total: int = 0
    in_selected_clusters: int = 0
    in_picked_episodes: int = 0
    added_by_net: int = 0
    ranked: int = 0
    clusters_total: int = 0
    clusters_selected: int = 0
    episodes_total: int = 0
    episodes_picked: int = 0


@dataclass(frozen=True, slots=True)
class ClusterCandidate:
    """A cluster that was weighed: its best episode's score (higher is better), and whether it was selected.

    `episodes_picked` of `episodes` were picked, holding `memories_picked` of its `memory_count` memories.
    `slm_vote` is the SLM's, as a z-score over those it was shown; None for others.
    """

    cluster: int
    title: str
    score: float
    selected: bool
    memory_count: int
    memories_picked: int
    episodes: int
    episodes_picked: int
    cosine: float
    reason: str
    slm_vote: float | None = None


@dataclass(frozen=True, slots=True)
class ClusterSelection:
    """Stage one: candidates best first; `fallback` says why the SLM had no say in it."""

    candidates: Sequence[ClusterCandidate]
    space: SearchSpace
    revision: int
    fallback: FallbackCause = FallbackCause.NONE


@dataclass(frozen=True, slots=True)
class ScoreParts:
    """What a memory's score is made of; `via` is "cluster", or "net" where only the safety net found it."""

    dense: float
    lexical: float
    neighbours: float
    episode: float
    via: str
    recency: float = 0.0
    access: float = 0.0
    choice: float = 0.0
    speaker: float = 0.0


@dataclass(frozen=True, slots=True)
class Conflict:
    """A memory that says otherwise, and a question the agent could ask to find out.

    `newer` says that the hit is the newer of the two.
    """

    memory_id: str
    reason: str
    clarifying_question: str
    newer: bool = False


@dataclass(frozen=True, slots=True)
class MemoryHit:
    """A ranked memory; rank starts at 1; `cluster_title` is that of its cluster.

    `duplicates` are the ids of hits that say the same and are not shown.
    """

    memory: Memory
    cluster_title: str
    score: float
    rank: int
    parts: ScoreParts
    conflicts: tuple[Conflict, ...] = ()
    duplicates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryHits:
    """Stage two: all hits, best first."""

    hits: Sequence[MemoryHit]


@dataclass(frozen=True, slots=True)
class AssembledContext:
    """Stage three: prompt-ready text within the token budget, its sources in the order printed."""

    text: str
    tokens: int
    memory_ids: tuple[str, ...]
    left_out: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class RetrieveDone:
    """Last: seconds per step, the search space, and what was skipped and why."""

    wait_s: float
    embed_s: float
    select_s: float
    rank_s: float
    context_s: float
    space: SearchSpace
    revision: int
    degraded: tuple[Degradation, ...] = ()
    slm_s: float = 0.0
    """The SLM's part of `select_s`."""


RetrieveStage: TypeAlias = ClusterSelection | MemoryHits | AssembledContext | RetrieveDone
