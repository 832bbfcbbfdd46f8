"""One generation: what was asked, how far it is, and the text that it has given away. Runs in the worker only."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clag_server.models.torch_faults import PASS_FAULTS, describe

if TYPE_CHECKING:
    import torch

    from clag_server.models.tokens import PlainTokenizer
    from clag_server.models.torch_forced import ForcedText
    from clag_server.models.torch_grammar import Constraint

__all__ = ["BULK_WAITS_S", "Failed", "Finished", "Job", "Piece", "WaitingJobs"]

BULK_WAITS_S = 10.0
"""Bulk work is served as if it had come this much later, so that a steady stream of other work cannot starve it."""

_INTERACTIVE = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """A generation that ended."""

    id: int
    text: str
    finished: bool
    tokens_in: int
    """Prompt tokens that were read, kept beginnings left out."""
    tokens_out: int
    compute_s: float
    batch: float
    """Mean number of rows that shared its passes."""
    kept_tokens: int
    """Prompt tokens whose keys and values were kept from an earlier prompt."""
    forced_tokens: int
    """Those of `tokens_out` in which the grammar left no choice."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A generation that the model could not bear; the others go on."""

    id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that a streamed generation adds."""

    id: int
    text: str


@dataclass(eq=False, slots=True)
class Job:
    """A generation that waits or runs."""

    id: int
    priority: int
    prompt: list[int]
    max_tokens: int
    constraint: Constraint | None = None
    streamed: bool = False
    alone: bool = False
    """Whether it must have the slab for itself: it may be what ended a worker, or broke a pass."""
    end_from: int | None = None
    """Number of tokens from which the text is brought to its end, so that the limit does not cut it."""
    queued_s: float = 0.0
    started_s: float = 0.0
    read: int = 0
    """Positions in the slab that are filled."""
    out: list[int] = field(default_factory=list)
    chosen: bool = False
    """Whether its prompt is read and what comes next is chosen, so that it writes on."""
    forced_tokens: int = 0
    stopped: bool = False
    cancelled: bool = False
    failure: str | None = None
    chain: list[bytes] = field(default_factory=list)
    """Digests of the prompt's beginnings, for the book of kept ones."""
    kept: torch.Tensor | None = None
    """Keys and values that its row begins with, until it has a row."""
    keep_at: int = 0
    """Where reading pauses to keep a beginning that other prompts share; 0 for nowhere."""
    kept_tokens: int = 0
    passes: int = 0
    rows_in_passes: int = 0
    _given: int = 0
    """Characters of the text that were given away."""

    @property
    def interactive(self) -> bool:
        """Whether somebody waits."""
        return self.priority == _INTERACTIVE

    @property
    def to_read(self) -> list[int]:
        """Tokens that must be in the slab before the next one is chosen."""
        return self.prompt + self.out

    @property
    def left(self) -> int:
        """Number of tokens still to read."""
        return len(self.prompt) + len(self.out) - self.read

    def next_piece(self, most: int) -> int:
        """Return how many tokens the next pass reads: up to `most`, or to where reading pauses."""
        return min(most, self.left, self.keep_at - self.read if self.keep_at else most)

    @property
    def ending(self) -> bool:
        """Whether it must come to its end now."""
        return self.end_from is not None and len(self.out) >= self.end_from

    @property
    def ended(self) -> bool:
        """Whether its row can go to another."""
        return self.stopped or self.cancelled or self.failure is not None

    def begin_again(self, *, alone: bool) -> None:
        """Forget what is in its row: its prompt and its text so far are read again, and it goes on from there."""
        self.read = self.kept_tokens = self.keep_at = 0
        self.kept, self.chosen = None, False
        self.alone = self.alone or alone

    def note_pass(self, rows: int) -> None:
        """Count a pass and how many shared it."""
        self.passes += 1
        self.rows_in_passes += rows

    def add(self, token: int, stop_ids: frozenset[int], forced: ForcedText) -> None:
        """Take the token that the model chose, and the text that it forces.

        A grammar that fails is this job's failure alone.
        """
        if self.failure is not None:
            return
        try:
            allowed = self.constraint is None or self.constraint.accept(token)
            if token in stop_ids or not allowed:
                self.stopped = True
                return
            self.out.append(token)
            self.chosen = True
            if self.constraint is not None:
                fixed = forced.take(self.constraint, self.out, self.max_tokens - len(self.out))
                self.out += fixed
                self.forced_tokens += len(fixed)
        except PASS_FAULTS as error:
            self.failure = describe(error)
            return
        complete = self.constraint is not None and self.constraint.ended
        self.stopped = complete or len(self.out) >= self.max_tokens

    def begin(self, forced: ForcedText) -> None:
        """Take the text that any answer begins with, to be read with the prompt."""
        if self.constraint is None:
            return
        fixed = forced.take(self.constraint, (), self.max_tokens - 1)
        if self.constraint.ended:  # somebody must come to its end in a pass
            self.constraint.go_back(1)
            fixed.pop()
        self.out += fixed
        self.forced_tokens += len(fixed)

    def piece(self, tokenizer: PlainTokenizer) -> str:
        """Return the text since the last call, whole characters only."""
        text = tokenizer.decode(self.out)
        # An unfinished character decodes to the replacement character and is held back until it is whole.
        ready = text if self.stopped else text.rstrip("\ufffd")
        fresh, self._given = ready[self._given :], max(self._given, len(ready))
        return fresh

    def result(self, tokenizer: PlainTokenizer, now_s: float) -> Finished:
        """Return what the caller gets."""
        complete = self.constraint is not None and self.constraint.ended
        cut = len(self.out) >= self.max_tokens and not complete
        return Finished(
            self.id,
            tokenizer.decode(self.out),
            not cut,
            len(self.prompt) - self.kept_tokens,
            len(self.out),
            now_s - self.started_s,
            self.rows_in_passes / max(self.passes, 1),
            self.kept_tokens,
            self.forced_tokens,
        )


class WaitingJobs:
    """Jobs that have no row yet, one line a priority."""

    def __init__(self) -> None:
        self._lines: tuple[deque[Job], ...] = (deque(), deque(), deque())

    def __len__(self) -> int:
        return sum(map(len, self._lines))

    def all(self) -> list[Job]:
        """Return every waiting job, most urgent line first."""
        return [job for line in self._lines for job in line]

    def put(self, job: Job, *, first: bool = False) -> None:
        """Add a job at the end of its line, or at the beginning where it lost its row."""
        line = self._lines[job.priority]
        if first:
            line.appendleft(job)
        else:
            line.append(job)

    def line(self) -> deque[Job] | None:
        """Return the line that is served next, None when nobody waits. Cancelled jobs at its head are dropped."""
        for line in self._lines:
            while line and line[0].ended:
                line.popleft()
        interactive, organize, bulk = self._lines
        if interactive:
            return interactive
        if organize and bulk:
            return bulk if bulk[0].queued_s + BULK_WAITS_S < organize[0].queued_s else organize
        return organize or bulk or None

    def drop_ended(self) -> None:
        """Drop jobs that were cancelled or failed while they waited."""
        for line in self._lines:
            if any(job.ended for job in line):
                rest = [job for job in line if not job.ended]
                line.clear()
                line.extend(rest)

    def remove(self, jobs: list[Job]) -> None:
        """Take jobs out: they have rows now, or failed."""
        gone = set(map(id, jobs))
        for line in self._lines:
            if any(id(job) in gone for job in line):
                rest = [job for job in line if id(job) not in gone]
                line.clear()
                line.extend(rest)
