"""Which generation has which row of the slab. Runs in the worker only.

Running generations have rows 0 to `len(active) - 1`, those whose prompt is being read follow, the most urgent
first; both are neighbours, so that a pass reads one stretch of the slab.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clag_server.models.torch_device import is_out_of_memory, release_memory
from clag_server.models.torch_faults import PASS_FAULTS
from clag_server.models.torch_slab import Slab

if TYPE_CHECKING:
    from clag_server.models.torch_cache import KvShape
    from clag_server.models.torch_job import Job

__all__ = ["Rows"]


class Rows:
    """The slab and who has it.

    Args:
        shape: The model's shape.
        slots: Number of rows while memory suffices.
    """

    def __init__(self, shape: KvShape, slots: int) -> None:
        self.slab = Slab(shape, slots)
        self.active: list[Job] = []
        self.reading: list[Job] = []
        self._slots = slots

    def __len__(self) -> int:
        return len(self.active) + len(self.reading)

    @property
    def everyone(self) -> list[Job]:
        """All generations that have a row."""
        return [*self.active, *self.reading]

    @property
    def alone(self) -> bool:
        """Whether somebody has the slab for itself."""
        return any(job.alone for job in self.everyone)

    def give(self, group: list[Job]) -> None:
        """Give rows to prompts that are read next, before those that are being read."""
        first = len(self.active)
        for i in range(len(self.reading) - 1, -1, -1):  # from the last, so that none overwrites another
            self.slab.move(first + i, first + i + len(group), self.reading[i].read)
        self.reading[:0] = group
        for i, job in enumerate(group):
            if job.kept is not None:
                self.slab.put(first + i, job.kept)
                job.kept = None

    def settle(self) -> None:
        """Take rows back from generations that ended, and count prompts that are read as running."""
        row = 0
        while row < len(self.active):
            if not self.active[row].ended:
                row += 1
                continue
            last = self.active.pop()
            if row < len(self.active):
                self.slab.move(len(self.active), row, last.read)
                self.active[row] = last
            self._close_gap(len(self.active), self.reading)
        at = 0
        while at < len(self.reading):
            if self.reading[at].ended:
                del self.reading[at]
                self._close_gap(len(self.active) + at, self.reading[at:])
            else:
                at += 1
        while self.reading and self.reading[0].chosen:
            self.active.append(self.reading.pop(0))

    def _close_gap(self, row: int, behind: list[Job]) -> None:
        for i, job in enumerate(behind):
            self.slab.move(row + i + 1, row + i, job.read)

    def reserve(self, tokens: int) -> list[Job]:
        """Make room for rows of `tokens` positions.

        Returns:
            Generations that lost their rows because memory ran out, to be queued again: they go on where they
            were after their text so far is read once more. Empty where the room is there.

        Raises:
            MemoryError: There is no room even for one row.
        """
        try:
            self.slab.reserve(tokens)
        except PASS_FAULTS as error:
            if not is_out_of_memory(error):
                raise
            if self.slab.rows <= 1:
                raise MemoryError(f"no memory for {tokens} tokens of one request") from error
            return self.retreat(self.slab.rows // 2)
        return []

    def retreat(self, rows: int) -> list[Job]:
        """Take all rows back and go on with `rows` of them; return who lost theirs."""
        lost = [job for job in self.everyone if not job.ended]
        self.active, self.reading = [], []
        for job in lost:
            job.begin_again(alone=False)
        release_memory()
        self.slab.restart(rows)
        return lost

    def recover(self) -> None:
        """Take more rows again, after memory had run out; called when nobody has or wants one."""
        rows = self.slab.rows
        if rows >= self._slots:
            return
        try:
            self.retreat(min(max(2 * rows, 1), self._slots))
        except PASS_FAULTS as error:
            if not is_out_of_memory(error):
                raise
            self.retreat(max(rows, 1))
