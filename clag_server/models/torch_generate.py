"""Greedy generation in slots: requests join and leave between steps. Runs in the worker only.

A step reads at most one piece of one waiting prompt and then one token for every active row, so that scoring and
embedding, which run between steps, wait for one step only (DESIGN section 7, step policy).
"""

from __future__ import annotations

import heapq
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from clag_server.models.torch_cache import SlotCache, causal_mask
from clag_server.models.torch_grammar import Constraint, GrammarBook, mask_logits

if TYPE_CHECKING:
    from clag_server.models.torch_slm import CausalModel

__all__ = ["Finished", "Generator", "RefusedError"]

_RESERVED_SLOTS = 2
"""Slots that only interactive requests may take."""


class RefusedError(ValueError):
    """A request that cannot be generated; the message gives the limit."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A generation that ended."""

    id: int
    text: str
    finished: bool
    tokens_in: int
    tokens_out: int
    compute_s: float


@dataclass(slots=True)
class _Job:
    id: int
    interactive: bool
    prompt: list[int]
    max_tokens: int
    constraint: Constraint | None
    read: int = 0
    """Prompt tokens that are in the cache."""
    out: list[int] = field(default_factory=list)
    stopped: bool = False
    cancelled: bool = False
    started_s: float = 0.0

    @property
    def length(self) -> int:
        """Positions in the cache: the newest token is not in yet."""
        return self.read + max(len(self.out) - 1, 0)


class Generator:
    """Generates for many requests at once.

    Args:
        model: The language model.
        slots: Requests that run at the same time.
        context_tokens: Prompt and answer together.
        prefill_tokens: Prompt tokens that one step reads.
    """

    def __init__(self, model: CausalModel, *, slots: int, context_tokens: int, prefill_tokens: int) -> None:
        self._model = model
        self._context = min(context_tokens, model.max_positions)
        self._prefill_tokens = prefill_tokens
        self._slots = slots
        self._staging = slots  # one more row, where the prompt that is being read lives until it is complete
        self._cache = SlotCache(model.shape, slots + 1, self._context)
        self._grammars = GrammarBook(model)
        self._waiting: list[tuple[int, int, _Job]] = []
        self._reading: _Job | None = None
        self._active: list[_Job] = []
        self._order = 0

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self._waiting or self._reading or self._active)

    def submit(self, request_id: int, prompt: str, grammar: str | None, max_tokens: int, priority: int) -> None:
        """Queue a request.

        Raises:
            RefusedError: The prompt leaves no room for the answer.
            GrammarError: The grammar does not compile.
        """
        ids = self._model.prompt_ids(prompt)
        if len(ids) + max_tokens > self._context:
            raise RefusedError(
                f"prompt of {len(ids)} tokens and answer of {max_tokens}: the limit is {self._context} together"
            )
        constraint = self._grammars.constraint(grammar) if grammar is not None else None
        job = _Job(request_id, priority == 0, ids, max_tokens, constraint)
        self._order += 1
        heapq.heappush(self._waiting, (priority, self._order, job))

    def cancel(self, request_id: int) -> None:
        """Forget a request; its row is free after the next step."""
        everyone = [job for _, _, job in self._waiting] + self._active
        for job in [*everyone, self._reading] if self._reading else everyone:
            if job.id == request_id:
                job.cancelled = True

    def fail_all(self) -> list[int]:
        """Drop every request after a fault in a step and return their ids."""
        jobs = [*self._active, *([self._reading] if self._reading else []), *(j for _, _, j in self._waiting)]
        self._active, self._reading, self._waiting = [], None, []
        return [job.id for job in jobs if not job.cancelled]

    @torch.inference_mode()
    def step(self) -> list[Finished]:
        """Read one piece of a prompt, then one token for each active row; return what ended."""
        self._admit()
        if self._reading is not None:
            self._read_piece(self._reading)
        if self._active:
            self._decode()
        return self._reap()

    def _admit(self) -> None:
        while self._waiting and self._reading is None:
            job = self._waiting[0][2]
            room = self._slots if job.interactive else max(self._slots - _RESERVED_SLOTS, 1)
            if len(self._active) >= room and not job.cancelled:
                return
            heapq.heappop(self._waiting)
            if not job.cancelled:
                job.started_s = time.perf_counter()
                self._reading = job

    def _read_piece(self, job: _Job) -> None:
        if job.cancelled:
            self._reading = None
            return
        piece = job.prompt[job.read : job.read + self._prefill_tokens]
        device = self._model.device
        self._cache.plan_prefill(self._staging, job.read, len(piece))
        positions = torch.arange(job.read, job.read + len(piece), device=device)[None]
        mask = causal_mask(job.read, len(piece), device)
        hidden = self._model.hidden(torch.tensor([piece], device=device), mask, positions, self._cache)
        job.read += len(piece)
        if job.read < len(job.prompt):
            return
        self._reading = None
        self._cache.move(self._staging, len(self._active), job.read)
        self._active.append(job)
        self._take(self._model.logits(hidden[:, -1]), [job])

    def _decode(self) -> None:
        jobs = [job for job in self._active if not job.stopped]
        if len(jobs) != len(self._active) or any(job.cancelled for job in jobs):
            return  # a row ended with its first token; `_reap` compacts before the next step
        device = self._model.device
        lengths = [job.length for job in jobs]
        longest = max(lengths) + 1
        positions = torch.tensor(lengths, device=device)
        self._cache.plan_decode(positions, longest)
        mask = (torch.arange(longest, device=device)[None] <= positions[:, None])[:, None, None]
        ids = torch.tensor([[job.out[-1]] for job in jobs], device=device)
        hidden = self._model.hidden(ids, mask, positions[:, None], self._cache)
        self._take(self._model.logits(hidden[:, 0]), jobs)

    def _take(self, logits: torch.Tensor, jobs: list[_Job]) -> None:
        """Append each row's most likely allowed token."""
        mask_logits(logits, [job.constraint for job in jobs])
        for job, token in zip(jobs, logits.argmax(-1).tolist(), strict=True):
            allowed = job.constraint is None or job.constraint.accept(token)
            if token in self._model.stop_ids or not allowed:
                job.stopped = True
                continue
            job.out.append(token)
            ended = job.constraint is not None and job.constraint.ended
            job.stopped = ended or len(job.out) >= job.max_tokens

    def _reap(self) -> list[Finished]:
        done: list[Finished] = []
        row = 0
        while row < len(self._active):
            job = self._active[row]
            if not (job.stopped or job.cancelled):
                row += 1
                continue
            if not job.cancelled:
                done.append(self._finish(job))
            last = self._active.pop()
            if last is not job:
                self._cache.move(len(self._active), row, last.length)
                self._active[row] = last
        return done

    def _finish(self, job: _Job) -> Finished:
        cut = len(job.out) >= job.max_tokens and not (job.constraint is not None and job.constraint.ended)
        return Finished(
            job.id,
            self._model.tokenizer.decode(job.out),
            not cut,
            len(job.prompt),
            len(job.out),
            time.perf_counter() - job.started_s,
        )
