"""A growing matrix of unit centroids by number, for episodes and clusters: one product scores them all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from clag_server.types.memory import Vector

_NEAR_NOTHING = 1e-12
"""Least square of a length that is divided by."""

_NO_LENGTH = 1e-12
"""Vectors not longer than this have no direction."""


def unit(vector: Vector) -> Vector:
    """Return the vector divided by its length (a zero vector stays zero)."""
    length = float(np.linalg.norm(vector))
    return (vector / length).astype(np.float32) if length > _NO_LENGTH else np.zeros_like(vector)


def rows_of_one(vectors: Sequence[Vector]) -> NDArray[np.float32] | None:
    """Return the matrix whose rows, all of them and in this order, the vectors are; None where there is none.

    The catalog reads many vectors as one matrix; to copy that together again takes longer than to read it.
    """
    whole, width = vectors[0].base, len(vectors[0])
    if not isinstance(whole, np.ndarray) or whole.dtype != np.float32 or not whole.flags.c_contiguous:
        return None
    if whole.size != len(vectors) * width:
        return None
    here, step = whole.__array_interface__["data"][0], whole.itemsize * width
    for row, vector in enumerate(vectors):
        if vector.base is not whole or vector.__array_interface__["data"][0] != here + row * step:
            return None
    return whole.reshape(len(vectors), width)


class CentroidTable:
    """Unit vectors of shape (dim,) by integer number, each with a group (its cluster) and a size (memories).

    `scores` works on the rows as they are, so a table of n rows costs n * dim multiplications and no copy.
    """

    def __init__(self, dim: int) -> None:
        self._dim = dim
        self._matrix = np.zeros((64, dim), dtype=np.float32)
        self._numbers = np.zeros(64, dtype=np.int64)
        self._groups = np.zeros(64, dtype=np.int64)
        self._sizes = np.zeros(64, dtype=np.int64)
        self._row_of: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._row_of)

    def __contains__(self, number: int) -> bool:
        return number in self._row_of

    def put(self, number: int, vector_sum: Vector, *, group: int = 0, size: int = 0) -> None:
        """Set the centroid of `number` from a sum of vectors (dim,)."""
        row = self._row_of.get(number)
        if row is None:
            row = len(self._row_of)
            if row == len(self._numbers):
                # New arrays, so that a product running in another thread keeps the old ones.
                self._matrix = np.concatenate([self._matrix, np.zeros_like(self._matrix)])
                self._numbers = np.concatenate([self._numbers, np.zeros_like(self._numbers)])
                self._groups = np.concatenate([self._groups, np.zeros_like(self._groups)])
                self._sizes = np.concatenate([self._sizes, np.zeros_like(self._sizes)])
            self._row_of[number] = row
            self._numbers[row] = number
        self._matrix[row] = unit(vector_sum)
        self._groups[row] = group
        self._sizes[row] = size

    def fill(
        self,
        numbers: Sequence[int],
        sums: NDArray[np.float32],
        *,
        groups: Sequence[int] | None = None,
        sizes: Sequence[int] | None = None,
    ) -> None:
        """Set an empty table from sums of vectors (n, dim) at once; the same as `put` for each, in order."""
        rows = len(numbers)
        room = max(64, 1 << (rows - 1).bit_length() if rows else 0)
        self._matrix = np.zeros((room, self._dim), dtype=np.float32)
        self._numbers, self._groups, self._sizes = (np.zeros(room, dtype=np.int64) for _ in range(3))
        # Not np.linalg.norm, which writes all squares down first.
        lengths = np.sqrt(np.einsum("ij,ij->i", sums, sums))[:, None]
        np.divide(sums, lengths, out=self._matrix[:rows], where=lengths > _NO_LENGTH)
        self._numbers[:rows] = numbers
        self._groups[:rows] = 0 if groups is None else groups
        self._sizes[:rows] = 0 if sizes is None else sizes
        self._row_of = {number: row for row, number in enumerate(numbers)}

    def remove(self, number: int) -> None:
        """Forget `number`; unknown numbers are ignored. The last row takes its place."""
        row = self._row_of.pop(number, None)
        if row is None:
            return
        last = len(self._row_of)
        if row != last:
            moved = int(self._numbers[last])
            self._matrix[row] = self._matrix[last]
            self._groups[row] = self._groups[last]
            self._sizes[row] = self._sizes[last]
            self._numbers[row] = moved
            self._row_of[moved] = row

    def get(self, number: int) -> Vector:
        """Return a copy of the unit centroid (dim,); KeyError for an unknown number."""
        row: Vector = self._matrix[self._row_of[number]].copy()
        return row

    def scores(self, vector: Vector) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return (numbers (n,), cosines (n,)) of all rows with a unit vector (dim,)."""
        n = len(self._row_of)
        return self._numbers[:n].copy(), self._matrix[:n] @ vector

    def groups_and_sizes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (groups (n,), sizes (n,)) of all rows, in the order of `scores`."""
        n = len(self._row_of)
        return self._groups[:n].copy(), self._sizes[:n].copy()

    def rows_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of given numbers, unknown ones left out; rows hold until the next change."""
        known = (self._row_of.get(number, -1) for number in numbers.tolist())
        rows = np.fromiter(known, dtype=np.int64, count=len(numbers))
        return rows[rows >= 0]

    def rows_in(self, groups: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of all that is in given groups, ascending."""
        return np.flatnonzero(np.isin(self._groups[: len(self._row_of)], groups))

    def at(
        self, rows: NDArray[np.int64], vector: Vector
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """Return (numbers, groups, sizes, cosines with a unit vector (dim,)) of rows, each of shape (n,)."""
        cosines: NDArray[np.float32] = self._matrix[rows] @ vector
        return self._numbers[rows], self._groups[rows], self._sizes[rows], cosines

    def nearest(self, vector: Vector, limit: int) -> list[tuple[int, float]]:
        """Return up to `limit` (number, cosine), best first, ties by number."""
        numbers, cosines = self.scores(vector)
        chosen = _best_rows(cosines, limit)
        order = chosen[np.lexsort((numbers[chosen], -cosines[chosen]))][:limit]
        return [(int(numbers[i]), float(cosines[i])) for i in order]

    def nearest_centred(self, vector: Vector, center: Vector, limit: int) -> list[tuple[int, float]]:
        """Return up to `limit` (number, cosine), best first, of the angles seen from `center` (dim,).

        Memories of one agent share much (its name, its place, its way of speaking), so all plain cosines are
        high; seen from the common center, only what differs counts.
        """
        n = len(self._row_of)
        query = unit(vector - center)
        # (r - c) q / |r - c| for unit rows r, without writing r - c down: one pass over the table gives rq and rc.
        products = self._matrix[:n] @ np.stack([query, center], axis=1)
        lengths = np.sqrt(np.maximum(1.0 - 2.0 * products[:, 1] + float(center @ center), _NEAR_NOTHING))
        cosines = (products[:, 0] - float(center @ query)) / lengths
        numbers = self._numbers[:n]
        chosen = _best_rows(cosines, limit)
        order = chosen[np.lexsort((numbers[chosen], -cosines[chosen]))][:limit]
        return [(int(numbers[i]), float(cosines[i])) for i in order]


def _best_rows(scores: NDArray[np.float32], limit: int) -> NDArray[np.intp]:
    """Return rows that hold the `limit` best scores, with all that tie with the last of them."""
    if len(scores) <= limit:
        return np.arange(len(scores))
    least = np.partition(scores, len(scores) - limit)[len(scores) - limit]
    return np.flatnonzero(scores >= least)
