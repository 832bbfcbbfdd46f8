"""The change log and the history of single memories, as the domain sees them."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class ChangeKind(enum.IntEnum):
    """What a change says (numbers as in `clag.v1.ChangeKind`)."""

    MEMORY_CREATED = 1
    MEMORY_UPDATED = 2
    MEMORY_MOVED = 3
    MEMORY_EVOLVED = 4
    MEMORY_DELETED = 5
    CLUSTER_CREATED = 6
    CLUSTER_UPDATED = 7
    CLUSTER_REMOVED = 8


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the log. `ns` is the namespace's number.

    `key` and `memory_id` name the memory of a MEMORY kind (the id also when it is gone), None and "" otherwise.
    `cluster` is where the memory is or which cluster changed; `old_cluster` where a moved memory was.
    """

    revision: int
    ns: int
    kind: ChangeKind
    time_ns: int
    key: int | None = None
    memory_id: str = ""
    cluster: int | None = None
    old_cluster: int | None = None


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Changes in order; everything up to `through` has been looked at, whether it gave a change or not."""

    changes: Sequence[Change]
    through: int


class HistoryCause(enum.IntEnum):
    """What made a memory change (numbers as in `clag.v1.HistoryCause`)."""

    CLIENT = 1
    ROUTING = 2
    EVOLUTION = 3
    CLUSTER_EDIT = 4
    REORGANIZATION = 5
    CONFLICT = 6
    DELETION = 7
    REEMBEDDING = 8


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field of a memory that changed: its name in `clag.v1.Memory`, and JSON texts ("" where it was unset)."""

    field: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One change of a memory. `cause_memory_id` is the memory whose arrival caused it, "" when none."""

    revision: int
    cause: HistoryCause
    cause_memory_id: str
    time_ns: int
    changes: tuple[FieldChange, ...]
    model: str = ""
    cluster: int | None = None


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """A page of history, newest first; `next_before` is the revision to go on before, None at the end."""

    entries: Sequence[HistoryEntry]
    next_before: int | None
