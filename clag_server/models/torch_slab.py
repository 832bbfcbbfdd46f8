"""The slab: keys and values of all running generations in memory that was taken once. Runs in the worker only.

A row belongs to one generation; a pass works on neighbouring rows and writes each row's tokens behind those that
it has. Rows move when others leave, so that the running ones stay neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from clag_server.models.torch_attend import Before, Split

if TYPE_CHECKING:
    from clag_server.models.torch_cache import KvShape

__all__ = ["Slab"]

_FIRST_TOKENS = 256
"""Positions a row at the start. The slab doubles when a row needs more: 32 rows of 2,048 positions are 1.5 GB for a
135M model, and most prompts are short."""


class Slab:
    """A cache for the model's attention layers, which only call `update`.

    Args:
        shape: The model's shape.
        rows: Number of rows.
    """

    is_compileable = False

    def __init__(self, shape: KvShape, rows: int) -> None:
        self._shape = shape
        self._store = shape.empty(rows, _FIRST_TOKENS)
        self._row = self._count = self._longest = 0
        self._start: int | None = None
        self._positions = torch.zeros(0, 0, dtype=torch.long)
        self._rows = torch.zeros(0, 1, dtype=torch.long)
        self.split: Split | None = None
        """How the planned pass is split; None for one of equal rows."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self._store.shape[2])

    @property
    def nbytes(self) -> int:
        """Bytes that the slab takes."""
        return self._store.nbytes

    def plan(self, row: int, starts: list[int], new: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Prepare a pass over rows `row`, `row + 1`, ...

        Args:
            row: The first row.
            starts: Filled positions of each row.
            new: Tokens that each row reads; a row with fewer is padded, what the padding writes is never seen.

        Returns:
            Positions of the new tokens, shape (rows, new), and who sees whom, shape (rows, 1, new, longest).
        """
        device = self._store.device
        self.split = None
        self._longest = max(starts) + new
        self.reserve(self._longest)
        self._row, self._count = row, len(starts)
        # One start for all rows makes the write a slice, which is cheaper than an index.
        self._start = starts[0] if len(set(starts)) == 1 else None
        self._positions = torch.tensor(starts, device=device)[:, None] + torch.arange(new, device=device)
        self._rows = torch.arange(row, row + len(starts), device=device)[:, None]
        columns = torch.arange(self._longest, device=device)
        return self._positions, (columns <= self._positions[..., None])[:, None]

    def plan_split(self, row: int, starts: list[int], new: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Prepare a pass over rows that read different numbers of tokens.

        Its tokens are one line: the last token of each row, then for one row after the other those before it.

        Args:
            row: The first row.
            starts: Filled positions of each row.
            new: Tokens that each row reads, at least 1.

        Returns:
            Positions of the tokens, shape (1, tokens), and what the last tokens see, shape (rows, 1, 1, longest).
        """
        device = self._store.device
        ends = [start + count for start, count in zip(starts, new, strict=True)]
        self._longest = max(ends)
        self.reserve(self._longest)
        self._row, self._count, self._start = row, len(starts), None
        columns = torch.arange(self._longest, device=device)
        positions, rows, before = [end - 1 for end in ends], list(range(row, row + len(starts))), []
        for i, (start, count) in enumerate(zip(starts, new, strict=True)):
            if count > 1:
                own = torch.arange(start, start + count - 1, device=device)
                seen = columns[: start + count - 1] <= own[:, None]
                before.append(Before(i, len(positions), count - 1, seen[None, None]))
                positions += range(start, start + count - 1)
                rows += [row + i] * (count - 1)
        self.split = Split(len(starts), tuple(before))
        self._positions = torch.tensor(positions, device=device)[None]
        self._rows = torch.tensor(rows, device=device)[None]
        lasts = self._positions[0, : len(starts), None]
        return self._positions, (columns <= lasts)[:, None, None]

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the pass's keys and values; return what attention reads, shape (rows, heads, longest, width).

        Args:
            keys: Shape (rows, heads, new, width); of a split pass (1, heads, tokens, width).
            values: Likewise.
            layer_idx: Which layer's.
        """
        stored = self._store[layer_idx]
        here = slice(self._row, self._row + self._count)
        if self._start is not None:
            stored[0, here, :, self._start : self._longest] = keys
            stored[1, here, :, self._start : self._longest] = values
        else:
            stored[0][self._rows, :, self._positions] = keys.transpose(1, 2)
            stored[1][self._rows, :, self._positions] = values.transpose(1, 2)
        return stored[0, here, :, : self._longest], stored[1, here, :, : self._longest]

    def get_seq_length(self, *_: Any) -> int:
        """Return 0: positions and masks are always given explicitly."""
        return 0

    def move(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` positions of one row to another."""
        self._store[:, :, target, :, :tokens] = self._store[:, :, source, :, :tokens]

    def put(self, row: int, kept: torch.Tensor) -> None:
        """Begin a row with kept keys and values, shape (layers, 2, heads, tokens, width)."""
        self.reserve(int(kept.shape[3]))
        self._store[:, :, row, :, : kept.shape[3]] = kept

    def get(self, row: int, tokens: int) -> torch.Tensor:
        """Return a copy of a row's first positions, shape (layers, 2, heads, tokens, width)."""
        return self._store[:, :, row, :, :tokens].clone()

    def restart(self, rows: int) -> None:
        """Forget everything and begin again with `rows` rows of the first size, after memory ran out."""
        self._store = self._shape.empty(0, 0)  # the old memory goes before the new is asked for
        self._store = self._shape.empty(rows, _FIRST_TOKENS)

    def reserve(self, tokens: int) -> None:
        """Make every row at least `tokens` positions long."""
        has = int(self._store.shape[4])
        if tokens <= has:
            return
        wider = self._shape.empty(self.rows, max(2 * has, tokens))
        wider[:, :, :, :, :has] = self._store
        self._store = wider
