"""One forward pass of generation: reading prompts, or writing on. Runs in the worker only.

Nothing of a job is changed before its pass is through, so that a pass that fails can be tried again in halves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from clag_server.models.torch_job import Job
    from clag_server.models.torch_pick import TokenPicker
    from clag_server.models.torch_prefix import PrefixBook
    from clag_server.models.torch_rows import Rows
    from clag_server.models.torch_slm import CausalModel

__all__ = ["Passes", "splits"]


def splits(device: torch.device) -> bool:
    """Return whether rows that read more tokens than others are read without padding.

    An accelerator computes the padding of a few tokens faster than it starts more kernels.
    """
    return device.type == "cpu"


class Passes:
    """Runs passes over neighbouring rows.

    Args:
        model: The language model.
        rows: Who has which row.
        picker: Picks what comes next.
        prefixes: Where beginnings of prompts are kept.
        prefill_tokens: Prompt tokens that one pass reads.
        marked: Notes the requests of a pass while it runs.
    """

    def __init__(
        self,
        model: CausalModel,
        rows: Rows,
        picker: TokenPicker,
        prefixes: PrefixBook,
        *,
        prefill_tokens: int,
        marked: Callable[[list[int]], AbstractContextManager[None]],
    ) -> None:
        self._model = model
        self._rows = rows
        self._picker = picker
        self._prefixes = prefixes
        self._prefill_tokens = prefill_tokens
        self._marked = marked

    @torch.inference_mode()
    def read(self, first: int, count: int) -> None:
        """Read the next piece of `count` prompts from row `first` on."""
        slab, at = self._rows.slab, first - len(self._rows.active)
        jobs = self._rows.reading[at : at + count]
        pieces = [job.to_read[job.read :][: job.next_piece(self._prefill_tokens)] for job in jobs]
        complete = [i for i, job in enumerate(jobs) if job.left == len(pieces[i])]
        tokens: list[int] = []
        with self._marked([job.id for job in jobs]):
            hidden = self._padded(first, jobs, pieces)
            if complete:
                picked = torch.tensor(complete, device=self._model.device)
                lasts = torch.tensor([len(pieces[i]) - 1 for i in complete], device=self._model.device)
                tokens = self._picker.pick(hidden[picked, lasts], [jobs[i] for i in complete])
        for row, (job, piece) in enumerate(zip(jobs, pieces, strict=True), first):
            if job.keep_at and job.read + len(piece) >= job.keep_at:
                self._prefixes.keep(job.chain, slab.get(row, job.keep_at))
                job.keep_at = 0
        # Nothing failed: only now is anything changed that a second try would change again.
        for job, piece in zip(jobs, pieces, strict=True):
            job.read += len(piece)
            job.note_pass(count)
        for i, token in zip(complete, tokens, strict=True):
            self._add(jobs[i], token)

    @torch.inference_mode()
    def write(self, first: int, count: int) -> None:
        """Choose what comes next in `count` texts from row `first` on."""
        jobs = self._rows.active[first : first + count]
        pieces = [job.out[-job.left :] for job in jobs]
        device = self._model.device
        with self._marked([job.id for job in jobs]):
            if splits(device) and any(len(piece) > 1 for piece in pieces):
                hidden = self._split(first, jobs, pieces)
            else:
                lasts = torch.tensor([len(piece) - 1 for piece in pieces], device=device)
                hidden = self._padded(first, jobs, pieces)[torch.arange(count, device=device), lasts]
            tokens = self._picker.pick(hidden, jobs)
        for job, piece, token in zip(jobs, pieces, tokens, strict=True):
            job.read += len(piece)
            job.note_pass(count)
            self._add(job, token)

    def _padded(self, first: int, jobs: list[Job], pieces: list[list[int]]) -> torch.Tensor:
        """Return hidden states, shape (rows, longest piece, width)."""
        slab, new = self._rows.slab, max(map(len, pieces))
        positions, mask = slab.plan(first, [job.read for job in jobs], new)
        ids = torch.tensor([piece + [0] * (new - len(piece)) for piece in pieces], device=self._model.device)
        return self._model.hidden(ids, mask, positions, slab)

    def _split(self, first: int, jobs: list[Job], pieces: list[list[int]]) -> torch.Tensor:
        """Return the hidden states of the last tokens, shape (rows, width)."""
        slab = self._rows.slab
        positions, mask = slab.plan_split(first, [job.read for job in jobs], [len(piece) for piece in pieces])
        line = [piece[-1] for piece in pieces] + [token for piece in pieces for token in piece[:-1]]
        ids = torch.tensor([line], device=self._model.device)
        return self._model.hidden(ids, mask, positions, slab)[0, : len(jobs)]

    def _add(self, job: Job, token: int) -> None:
        job.add(token, self._model.stop_ids, self._picker.forced)
