"""What became of the items of an ingestion so far, and how it is shown."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from clag_client import Outcome

from clag_server.cli.ingest_source import Source
from clag_server.cli.output import console, note
from clag_server.cli.terms import in_words, key_of

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["LineError", "Tally", "drawn"]

_TOLD_ERRORS: Final = 20
_KEPT_ERRORS: Final = 1000


@dataclass(frozen=True, slots=True)
class LineError:
    """A line that was not stored, or whose memory is quarantined."""

    line: int
    seq: int
    field: str
    message: str

    def __str__(self) -> str:
        where = f"{self.field}: " if self.field else ""
        return f"line {self.line}: {where}{self.message}"


@dataclass(slots=True)
class Tally:
    """Counts of one run.

    Attributes:
        source: Where the items came from.
        quiet: Whether errors are kept and not told.
        acked: Items that have reached the level that was asked for, or never will.
        created: Items that became memories.
        duplicate: Items that were there before.
        rejected: Items that broke a rule.
        quarantined: Memories for which a stage failed too often.
        unknown: Items that are durable but whose outcome was lost with a connection.
        errors: The first thousand lines that were not stored.
    """

    source: Source
    quiet: bool = False
    acked: int = 0
    created: int = 0
    duplicate: int = 0
    rejected: int = 0
    quarantined: int = 0
    unknown: int = 0
    errors: list[LineError] = field(default_factory=list)
    _errors: int = 0
    _unfinished: set[int] = field(default_factory=set)
    _started: float = field(default_factory=time.monotonic)

    @property
    def errors_left_out(self) -> int:
        """Number of errors beyond those kept."""
        return self._errors - len(self.errors)

    def elapsed_s(self) -> float:
        """Seconds since the start of the run."""
        return time.monotonic() - self._started

    def per_second(self) -> float:
        """Items acknowledged a second."""
        return self.acked / max(self.elapsed_s(), 1e-9)

    def add(self, outcome: Outcome) -> None:
        """Count an outcome; an item's later outcomes only raise its level."""
        if outcome.seq not in self._unfinished:
            self._count(outcome)
        if outcome.final:
            self._unfinished.discard(outcome.seq)
            self.acked += 1
        else:
            self._unfinished.add(outcome.seq)
        if outcome.state == types_pb2.MEMORY_STATE_QUARANTINED:
            self.quarantined += 1
            self.fail(outcome.seq, "", f"quarantined: {_reason(outcome)}")

    def fail(self, seq: int, path: str, message: str) -> None:
        """Keep an error, and tell it unless there were many; path and message may be the contract's."""
        error = LineError(self.source.number(seq), seq, key_of(path), in_words(message))
        self._errors += 1
        if len(self.errors) < _KEPT_ERRORS:
            self.errors.append(error)
        if not self.quiet and self._errors <= _TOLD_ERRORS:
            note(str(error))
        if not self.quiet and self._errors == _TOLD_ERRORS:
            note(f"more such lines are counted only (the first {_KEPT_ERRORS:,} are in the output of --json)")

    def as_json(self) -> dict[str, object]:
        """The counts and errors for programs."""
        return {
            "acked": self.acked,
            "created": self.created,
            "duplicate": self.duplicate,
            "rejected": self.rejected,
            "quarantined": self.quarantined,
            "unknown": self.unknown,
            "seconds": round(self.elapsed_s(), 3),
            "per_second": round(self.per_second(), 1),
            "errors": [asdict(error) for error in self.errors],
            "errors_left_out": self.errors_left_out,
        }

    def _count(self, outcome: Outcome) -> None:
        if outcome.disposition == pb.DISPOSITION_CREATED:
            self.created += 1
        elif outcome.disposition == pb.DISPOSITION_DUPLICATE:
            self.duplicate += 1
        elif outcome.disposition == pb.DISPOSITION_REJECTED:
            self.rejected += 1
            bad = self.source.bad.pop(outcome.seq, None)
            if bad is not None:
                self.fail(outcome.seq, bad.field, bad.reason)
            else:
                self.fail(outcome.seq, outcome.error.field if outcome.error else "", _reason(outcome))
        else:
            self.unknown += 1


def _reason(outcome: Outcome) -> str:
    return (outcome.error.message if outcome.error else "") or "no reason was given"


@contextmanager
def drawn(tally: Tally, *, total: int | None, done: int = 0) -> Iterator[_Bar | None]:
    """Draw the tally as a bar on standard error while the block runs; nothing where there is no terminal.

    Args:
        tally: What is shown, at each `update` of the bar.
        total: Items in all, if known.
        done: Items that were there before this run.
    """
    shown = console(stderr=True)
    if tally.quiet or not shown.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (BarColumn(20), MofNCompleteColumn(), TextColumn("{task.fields[counts]}", markup=False))
    with Progress(*columns, console=shown, transient=True) as bars:
        yield _Bar(bars, bars.add_task("", total=total, completed=done, counts=""), tally)


class _Bar:
    def __init__(self, bars: Progress, task: TaskID, tally: Tally) -> None:
        self._bars = bars
        self._task = task
        self._tally = tally

    def update(self, before: int) -> None:
        """Draw the tally as it is, with the items that were there before this run."""
        t = self._tally
        counts = f"{t.per_second():,.0f}/s  acked {t.acked:,}  created {t.created:,}"
        for name, count in (("duplicate", t.duplicate), ("rejected", t.rejected), ("quarantined", t.quarantined)):
            counts += f"  {name} {count:,}" if count else ""
        self._bars.update(self._task, completed=before + t.acked, counts=counts)
