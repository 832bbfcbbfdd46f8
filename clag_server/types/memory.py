"""What a memory is: the values of `clag.v1.Memory` as the domain and the stores see them.

Times are integers: nanoseconds since the Unix epoch, UTC (int64, so the years 1678 to 2261).
Vectors are float32 and L2-normalised. A memory has two identities: `memory_id`, the caller's (or a generated)
string that never changes, and `key`, the catalog's integer row, the only one of the two that indexes ever see.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Vector: TypeAlias = NDArray[np.float32]
"""Shape (dim,), L2-normalised unless a docstring says "sum"."""

Matrix: TypeAlias = NDArray[np.float32]
"""Shape (n, dim), rows as `Vector`."""

AttributeValue: TypeAlias = str | int | float | bool | tuple[str, ...]


CONTRADICTED: Final = 0.5
"""What a memory's confidence is multiplied by for each newer memory that contradicts it, while that is there."""


class MemoryKind(enum.IntEnum):
    """What sort of experience a memory records (numbers as in `clag.v1.MemoryKind`)."""

    UNSPECIFIED = 0
    OBSERVATION = 1
    ACTION = 2
    TOOL_OUTPUT = 3
    FEEDBACK = 4
    REFLECTION = 5
    FACT = 6
    MESSAGE = 7


class MemoryState(enum.IntEnum):
    """How far the pipeline has brought a memory (numbers as in `clag.v1.MemoryState`)."""

    STORED = 1
    EMBEDDED = 2
    ROUTED = 3
    EVOLVED = 4
    QUARANTINED = 5


class LinkKind(enum.IntEnum):
    """Why two memories of one cluster are linked (numbers as in `clag.v1.LinkKind`)."""

    CAUSAL = 1
    TEMPORAL = 2
    SAME_SUBJECT = 3
    CONTRADICTS = 4
    REFINES = 5
    SIMILAR = 6
    DUPLICATE = 7


class DecidedBy(enum.IntEnum):
    """Who chose a memory's cluster (numbers as in `clag.v1.RoutingDecision.DecidedBy`)."""

    SLM = 1
    VECTOR = 2
    DEFERRED = 3
    MANUAL = 4


class FallbackCause(enum.IntEnum):
    """Why the SLM's word is missing or did not count (numbers as in `clag.v1.FallbackCause`)."""

    NONE = 0
    UNAVAILABLE = 1
    TIMEOUT = 2
    INVALID_OUTPUT = 3
    NOT_A_CANDIDATE = 4
    NOT_TRUSTED = 5
    DISABLED = 6
    INPUT_REFUSED = 7
    BUDGET = 8


class AnnotationSource(enum.IntEnum):
    """Where context, keywords and evolved tags come from (numbers as in `clag.v1.AnnotationSource`)."""

    NONE = 0
    SLM = 1
    STATISTICS = 2


class Annotator(enum.StrEnum):
    """Who writes context, keywords and tags, and judges links (a setting)."""

    AUTO = "auto"
    """The SLM as far as it is trusted with each, else the terms."""
    TERMS = "terms"
    """Word statistics: deterministic, nothing that the memories do not say."""
    SLM = "slm"
    """The SLM whether it is trusted or not; the terms for unusable answers."""


@dataclass(frozen=True, slots=True)
class Link:
    """A link to another memory, with its kind, a reason a person can read, and the cosine when it was made."""

    memory_id: str
    kind: LinkKind
    reason: str
    similarity: float = 0.0


@dataclass(frozen=True, slots=True)
class RoutingCandidate:
    """One cluster that was weighed: cosine in [-1, 1]; channel score in nats, None when no SLM scored it."""

    cluster: int
    title: str
    cosine: float
    channel: float | None
    combined: float


@dataclass(frozen=True, slots=True)
class RoutingDecision:
    """Why a memory is in its cluster: candidates best first, who decided, the SLM's own vote, and the reason.

    `vote` is the cluster the SLM scored highest (None when it did not vote); it is recorded even where vectors
    decide. `provisional` decisions were taken from the first vectors of a still open episode, or await the SLM.
    `founded` says that no candidate was near enough. `fallback` is why the vote is missing or did not count;
    `slm_weight` is the weight it had in `combined`. `awaits_slm` says that the SLM is still to be asked.
    `evolve_again` says that the memory had evolved in another cluster and is to be linked in this one too.
    """

    decided_by: DecidedBy
    candidates: tuple[RoutingCandidate, ...]
    vote: int | None
    reason: str
    provisional: bool
    time_ns: int
    founded: bool = False
    fallback: FallbackCause = FallbackCause.NONE
    slm_weight: float = 0.0
    awaits_slm: bool = False
    evolve_again: bool = False


@dataclass(frozen=True, slots=True)
class NewMemory:
    """What a caller may set on a memory. `memory_id` "" asks the server for one; None means unset."""

    text: str
    memory_id: str = ""
    kind: MemoryKind = MemoryKind.UNSPECIFIED
    task: str = ""
    speaker: str = ""
    session_id: str = ""
    tags: tuple[str, ...] = ()
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    importance: float | None = None
    event_time_ns: int | None = None
    expire_time_ns: int | None = None
    supersedes: tuple[str, ...] = ()
    embedding: Vector | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """One stored memory, whole. `cluster` and `episode` are None until it is EMBEDDED."""

    key: int
    memory_id: str
    text: str
    kind: MemoryKind
    task: str
    speaker: str
    session_id: str
    session_position: int
    tags: tuple[str, ...]
    attributes: Mapping[str, AttributeValue]
    importance: float | None
    confidence: float
    event_time_ns: int
    create_time_ns: int
    update_time_ns: int
    expire_time_ns: int | None
    context: str
    keywords: tuple[str, ...]
    evolved_tags: tuple[str, ...]
    links: tuple[Link, ...]
    cluster: int | None
    episode: int | None
    state: MemoryState
    routing: RoutingDecision | None
    supersedes: tuple[str, ...]
    superseded_by: str
    access_count: int
    last_access_time_ns: int | None
    revision: int
    error: str
    has_embedding: bool
    embedding: Vector | None = None
    client_embedding: bool = False
    annotated_by: AnnotationSource = AnnotationSource.NONE
