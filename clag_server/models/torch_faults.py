"""Passes that fail: memory that runs out, and the one request that a model cannot bear. Runs in the worker only.

A pass over many rows that fails is tried again in halves: where memory was short, halves fit; where one row is at
fault, it ends up alone (case M6). A pass writes nothing that a second try does not write again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clag_server.models.torch_device import is_out_of_memory, release_memory

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PASS_FAULTS", "RowLimit"]

PASS_FAULTS = (ValueError, RuntimeError, IndexError, MemoryError)
"""What libraries raise for one bad request or for memory. Anything else is a fault of ours and ends the worker."""

_GROW_AFTER = 64
"""Passes without a fault after which twice the rows are tried again."""


class RowLimit:
    """How many rows one pass may have: halved when memory runs out, doubled again later.

    Args:
        most: The limit while memory suffices.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._now = most
        self._good = 0
        self.halvings = 0

    @property
    def rows(self) -> int:
        """Rows of one pass now."""
        return self._now

    def run(
        self, first: int, count: int, run: Callable[[int, int], None], fail: Callable[[int, str], None]
    ) -> None:
        """Run rows `first` to `first + count - 1` in passes that fit.

        Args:
            first: Number of the first row.
            count: Number of rows.
            run: Runs one pass over (first, count).
            fail: Called with a row that fails alone, and the reason.
        """
        while count > self._now:
            part = self._now
            self.run(first, part, run, fail)
            first, count = first + part, count - part
        try:
            run(first, count)
        except PASS_FAULTS as error:
            if is_out_of_memory(error):
                release_memory()
                self._now = max(min(self._now, count) // 2, 1)
                self._good = 0
                self.halvings += 1
            if count == 1:
                fail(first, describe(error))
                return
            half = count // 2
            self.run(first, half, run, fail)
            self.run(first + half, count - half, run, fail)
        else:
            self._good += 1
            if self._good >= _GROW_AFTER and self._now < self._most:
                self._now, self._good = min(2 * self._now, self._most), 0


def describe(error: BaseException) -> str:
    """Return one line that says what went wrong, without a library's memory report."""
    reason = "out of memory" if is_out_of_memory(error) else str(error)
    return f"{type(error).__name__}: {reason}"[:2000]
