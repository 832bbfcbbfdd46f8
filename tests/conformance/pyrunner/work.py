"""One command that is at work, and what other commands may do to it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from clag_client import Outcome

from tests.conformance.pyrunner.wire import Json, event_of

__all__ = ["Work"]


class Work:
    """A command at work. Any thread may call it.

    Args:
        command: as it was read.
        emit: writes one answer.

    Attributes:
        taken: items that an `ingest` has taken from its source.
        outcomes: outcomes that it has given.
    """

    def __init__(self, command: Json, emit: Callable[[Json], None]) -> None:
        self.command = command
        self.taken = 0
        self.outcomes = 0
        self.cancelled = False
        self._emit = emit
        self._finals: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._on_cancel: Callable[[], object] | None = None
        self._on_resume: Callable[[], object] | None = None
        self._resumed = False

    @property
    def timeout_s(self) -> float | None:
        """The command's deadline in seconds; None where it has none."""
        milliseconds = self.command.get("timeout_ms")
        return None if milliseconds is None else milliseconds / 1_000

    def event(self, event: Json) -> None:
        """Write an event."""
        self._emit({"id": self.command["id"], "event": event})

    def outcome(self, outcome: Outcome) -> None:
        """Count an outcome, and write it unless the command is quiet."""
        event = event_of(outcome)
        self.outcomes += 1
        if outcome.final:
            self._finals[event["disposition"]] += 1
        if not self.command.get("quiet"):
            self.event(event)

    def ingested(self, *, resumed_at: int, reconnects: int) -> Json:
        """The answer at the end of an ingestion."""
        return {
            "outcomes": dict(self._finals),
            "final": self._finals.total(),
            "resumed_at": resumed_at,
            "reconnects": reconnects,
            "taken": self.taken,
        }

    def pauses_before(self, number: int) -> bool:
        """Whether the source stops before this item until a `resume`."""
        after = self.command.get("pause_after")
        return after is not None and number == int(after) + 1

    @property
    def slow(self) -> bool:
        """Whether outcomes are read only after a `resume`."""
        return bool(self.command.get("consume") == "slow")

    def progress(self) -> Json:
        """How far an ingestion has come."""
        return {"taken": self.taken, "outcomes": self.outcomes}

    def on_cancel(self, action: Callable[[], object]) -> None:
        """Say how this is cancelled. Called at once where it was asked for already."""
        with self._lock:
            self._on_cancel = action
            due = self.cancelled
        if due:
            action()

    def on_resume(self, action: Callable[[], object]) -> None:
        """Say how the source goes on, or the reader of outcomes. Called at once where it was asked for already."""
        with self._lock:
            self._on_resume = action
            due = self._resumed
        if due:
            action()

    def cancel(self) -> None:
        """Cancel it."""
        with self._lock:
            self.cancelled, action = True, self._on_cancel
        if action is not None:
            action()

    def resume(self) -> None:
        """Let it go on."""
        with self._lock:
            self._resumed, action = True, self._on_resume
        if action is not None:
            action()
