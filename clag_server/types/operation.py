"""Long-running operations: asked for once, durable, resumed after a restart."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

JsonValue: TypeAlias = "str | int | float | bool | list[JsonValue] | dict[str, JsonValue] | None"


BASE: Final = "base"
"""Key in an operation's progress under which one that may start by itself says how much there was when it began."""


class OperationKind(enum.IntEnum):
    """What an operation does (numbers as in `clag.v1.OperationKind`)."""

    REORGANIZE = 1
    REINDEX = 2
    REEMBED = 3
    DELETE_NAMESPACE = 4
    PROBE = 5


class OperationState(enum.IntEnum):
    """How an operation stands (numbers as in `clag.v1.OperationState`)."""

    PENDING = 1
    RUNNING = 2
    SUCCEEDED = 3
    FAILED = 4
    CANCELLED = 5

    @property
    def ended(self) -> bool:
        """Whether it will not change any more."""
        return self >= OperationState.SUCCEEDED


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation.

    Attributes:
        operation_id: Identifies it on the server.
        ns: The namespace's number; None for operations of the server.
        namespace: The namespace's name (kept when the namespace is gone); "" for operations of the server.
        kind: What it does.
        state: How it stands.
        request: What was asked for; the runner of the kind reads it.
        request_id: Makes asking again safe; "" for none.
        phase: What it is doing now, in a word or two.
        done: Steps of the phase that are done.
        total: Steps of the phase; 0 when not known.
        progress: Where to go on after a restart; the runner's own.
        result: What came out, when it succeeded.
        error: Why it failed, in a sentence a caller reads.
        cancel_asked: Whether a client asked it to stop.
        create_time_ns: When it was asked for.
        end_time_ns: When it ended; None before.
    """

    operation_id: str
    ns: int | None
    namespace: str
    kind: OperationKind
    state: OperationState
    create_time_ns: int
    request: Mapping[str, JsonValue] = field(default_factory=dict)
    request_id: str = ""
    phase: str = ""
    done: int = 0
    total: int = 0
    progress: Mapping[str, JsonValue] = field(default_factory=dict)
    result: Mapping[str, JsonValue] = field(default_factory=dict)
    error: str = ""
    cancel_asked: bool = False
    end_time_ns: int | None = None
