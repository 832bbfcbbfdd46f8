"""Greedy generation at the level of passes: requests join and leave between two of them. Runs in the worker only.

One call of `step` is one forward pass: a piece of at most `prefill_tokens` of waiting prompts, or one token for
every running row, with the text that its last one forced. Scoring and embedding run between passes, so whoever
waits for an answer waits for one pass (DESIGN section 7, step policy).
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from clag_server.models.torch_faults import RowLimit, describe
from clag_server.models.torch_group import group_to_read
from clag_server.models.torch_job import Failed, Finished, Job, Piece, WaitingJobs
from clag_server.models.torch_pass import Passes
from clag_server.models.torch_pick import TokenPicker
from clag_server.models.torch_prefix import PrefixBook
from clag_server.models.torch_rows import Rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from clag_server.models.torch_slm import CausalModel

__all__ = ["Event", "Generator", "RefusedError"]

_RESERVED_ROWS = 2
"""Rows beside the others that only interactive requests may take."""

_READS_PER_WRITE = 4
"""Prompt pieces between two tokens of the running rows: a pass costs nearly the same for 1 row as for 32, so rows
are filled first. One where somebody waits for a running row's text."""

Event = Finished | Failed | Piece


class RefusedError(ValueError):
    """A request that cannot be generated; the message gives the limit."""


class Generator:
    """Generates for many requests at once.

    Args:
        model: The language model.
        slots: Requests that run at the same time.
        context_tokens: Prompt and answer together.
        prefill_tokens: Prompt tokens, padding included, that one pass reads.
        prefix_bytes: Memory for beginnings that prompts share.
        marked: Notes the requests of a pass while it runs.
        clock: Seconds; replaced by tests of fairness.
    """

    def __init__(
        self,
        model: CausalModel,
        *,
        slots: int,
        context_tokens: int,
        prefill_tokens: int,
        prefix_bytes: int = 0,
        marked: Callable[[list[int]], AbstractContextManager[None]] = lambda _: nullcontext(),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._model = model
        self._context = min(context_tokens, model.max_positions)
        self._prefill_tokens = prefill_tokens
        self._slots = slots
        self._rows = Rows(model.shape, slots + _RESERVED_ROWS)
        self._picker = TokenPicker(model)
        self._joining: list[Job] = []
        self._limit = RowLimit(slots + _RESERVED_ROWS)
        self._clock = clock
        self._waiting = WaitingJobs()
        self._reads = 0
        self.prefixes = PrefixBook(prefix_bytes)
        self._passes = Passes(
            model, self._rows, self._picker, self.prefixes, prefill_tokens=prefill_tokens, marked=marked
        )

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(len(self._rows) or len(self._waiting))

    @property
    def interactive(self) -> bool:
        """Whether somebody waits for a request."""
        return any(job.interactive for job in (*self._rows.everyone, *self._waiting.all()))

    @property
    def slab_bytes(self) -> int:
        """Bytes of the slab."""
        return self._rows.slab.nbytes

    def submit(
        self,
        request_id: int,
        prompt: str,
        grammar: str | None,
        max_tokens: int,
        priority: int,
        *,
        streamed: bool = False,
        ending: str = "",
        alone: bool = False,
    ) -> None:
        """Queue a request.

        With `ending`, as long as what a begun text may lack to its end, the text is ended before the limit cuts it.
        `alone` gives it the slab for itself.

        Raises:
            RefusedError: The prompt leaves no room for the answer.
            GrammarError: The grammar does not compile.
        """
        ids = self._model.prompt_ids(prompt)
        if len(ids) + max_tokens > self._context:
            raise RefusedError(
                f"prompt of {len(ids)} tokens and answer of {max_tokens}: the limit is {self._context} together"
            )
        if not ids or not 0 <= min(ids) <= max(ids) < self._model.vocabulary_size:
            raise RefusedError("the prompt has no tokens, or one that the model does not know")
        constraint = self._picker.constraint(grammar) if grammar is not None else None
        job = Job(request_id, priority, ids, max_tokens, constraint, streamed, alone=alone, queued_s=self._clock())
        job.chain = self.prefixes.chain(ids)
        if ending:
            least = self._picker.tokens_of(ending)
            if least > max_tokens:
                raise RefusedError(f"max_tokens is {max_tokens}, an answer's end takes up to {least}")
            job.end_from = max_tokens - least
        job.begin(self._picker.forced)
        self._waiting.put(job)

    def cancel(self, request_id: int) -> None:
        """Forget a request; its row is free after the next step."""
        for job in (*self._rows.everyone, *self._waiting.all()):
            if job.id == request_id:
                job.cancelled = True

    def start_over(self, error: Exception) -> list[Event]:
        """Go on after a fault that is not one row's.

        Everyone who had a row, or was to get one, begins again and has the slab for itself, so that a second fault
        tells whose it is: who was alone fails. Those who wait notice nothing.

        Args:
            error: The fault.
        """
        involved = [job for job in self._joining if job not in self._rows.everyone] + self._rows.everyone
        if not involved:
            involved = self._waiting.all()  # nobody had begun: trying again would fail again
            for job in involved:
                job.alone = True
        self._joining = []
        self._waiting.remove(involved)
        self._rows.retreat(self._rows.slab.rows)
        events: list[Event] = []
        for job in reversed([one for one in involved if not one.ended]):
            if job.alone:
                events.append(Failed(job.id, describe(error)))
            else:
                job.begin_again(alone=True)
                self._waiting.put(job, first=True)
        return events

    def step(self) -> list[Event]:
        """Run one pass and return what came of it."""
        rows = self._rows
        rows.settle()
        self._admit()
        if rows.active and (not rows.reading or self._reads >= self._reads_per_write()):
            self._reads = 0
            if self._has_room(max(job.read + job.left for job in rows.active), rows.active):
                self._limit.run(0, len(rows.active), self._passes.write, self._fail)
        elif rows.reading:
            self._reads += 1
            self._read()
        return self._events()

    def _reads_per_write(self) -> int:
        return 1 if any(job.interactive for job in self._rows.active) else _READS_PER_WRITE

    def _admit(self) -> None:
        """Give rows to the requests that are served next, unless more urgent prompts are being read."""
        line, reading = self._waiting.line(), self._rows.reading
        if line is None or (reading and reading[0].priority <= line[0].priority):
            return
        if self._rows.alone or (line[0].alone and len(self._rows)):
            return
        most = self._slots + (_RESERVED_ROWS if line[0].interactive else 0)
        free = min(most, self._rows.slab.rows) - len(self._rows)
        if free <= 0:
            return
        self._joining = group = group_to_read(line, free, self.prefixes, self._prefill_tokens)
        longest = max(job.read + min(job.left, self._prefill_tokens) for job in group)
        if not self._has_room(longest, group):
            return
        self._waiting.remove(group)
        for job in group:
            job.started_s = job.started_s or self._clock()
            self.prefixes.count(hit=job.kept is not None)
        self._rows.give(group)
        self._joining = []

    def _has_room(self, tokens: int, jobs: list[Job]) -> bool:
        """Make room in the slab; False where it could not be had and the rows were given up instead."""
        try:
            lost = self._rows.reserve(tokens)
        except MemoryError as error:
            longest = max(jobs, key=lambda job: len(job.to_read))
            longest.failure = str(error)
            return False
        for job in reversed(lost):
            self._waiting.put(job, first=True)
        return not lost

    def _read(self) -> None:
        """Read the next piece of the most urgent prompts."""
        reading = self._rows.reading
        count, longest = 1, reading[0].next_piece(self._prefill_tokens)
        if longest == reading[0].left:
            for job in reading[1:]:
                wider = max(longest, job.left)
                if job.keep_at or (count + 1) * wider > self._prefill_tokens:
                    break
                count, longest = count + 1, wider
        if self._has_room(max(job.read for job in reading[:count]) + longest, reading[:count]):
            self._limit.run(len(self._rows.active), count, self._passes.read, self._fail)

    def _fail(self, row: int, reason: str) -> None:
        self._rows.everyone[row].failure = reason

    def _events(self) -> list[Event]:
        """Return what this pass gave: pieces of streamed texts, ends, failures."""
        events: list[Event] = []
        tokenizer = self._model.tokenizer
        for job in (*self._rows.everyone, *(one for one in self._waiting.all() if one.failure is not None)):
            if job.cancelled:
                continue
            if job.failure is not None:
                events.append(Failed(job.id, job.failure))
                continue
            if job.streamed and (text := job.piece(tokenizer)):
                events.append(Piece(job.id, text))
            if job.stopped:
                events.append(job.result(tokenizer, self._clock()))
        self._rows.settle()
        self._waiting.drop_ended()
        if not self.busy:
            self._rows.recover()
        return events
