"""The typed filter tree of `clag.v1.Filter`: data, never a string expression."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from clag_server.types.memory import AttributeValue


class FilterField(enum.StrEnum):
    """Built-in fields that comparisons may name: those of `clag.v1.FilterField`, by the same names."""

    MEMORY_ID = "memory_id"
    CLUSTER_ID = "cluster_id"
    SESSION_ID = "session_id"
    SPEAKER = "speaker"
    TASK = "task"
    KIND = "kind"
    STATE = "state"
    TAG = "tag"
    EVENT_TIME = "event_time"
    CREATE_TIME = "create_time"
    UPDATE_TIME = "update_time"
    EXPIRE_TIME = "expire_time"
    IMPORTANCE = "importance"
    CONFIDENCE = "confidence"
    TEXT = "text"
    EPISODE_ID = "episode_id"
    SUPERSEDED_BY = "superseded_by"


class Operator(enum.StrEnum):
    """Comparison operators. CONTAINS: substring of a string, member of a list. EXISTS: the field is set."""

    EQ = "eq"
    NE = "ne"
    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"
    IN = "in"
    CONTAINS = "contains"
    EXISTS = "exists"


@dataclass(frozen=True, slots=True)
class Comparison:
    """`field operator value`; an attribute is named by its key. Values of another type never match.

    Times are nanoseconds since the epoch; KIND and STATE compare by number. IN takes a tuple.
    """

    field: FilterField | None
    attribute: str
    operator: Operator
    value: AttributeValue | tuple[AttributeValue, ...] | None


@dataclass(frozen=True, slots=True)
class And:
    """All of the parts match (true when empty)."""

    parts: Sequence[Filter]


@dataclass(frozen=True, slots=True)
class Or:
    """At least one of the parts matches (false when empty)."""

    parts: Sequence[Filter]


@dataclass(frozen=True, slots=True)
class Not:
    """The part does not match."""

    part: Filter


Filter: TypeAlias = And | Or | Not | Comparison
