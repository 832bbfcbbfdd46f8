"""New vectors of a namespace, gathered in a file while the old ones serve.

The file is a row of records (key, vector) of one size, in order of keys, and nothing else: how many of them count
is kept by whoever resumes, so that what a crash tore off or doubled at the end is cut away. All methods block.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clag_server.types.memory import Matrix

__all__ = ["ShadowFile"]

_BATCH: Final = 1024


class ShadowFile:
    """Vectors by memory key.

    Args:
        path: The file; its directory is made.
        dim: Length of a vector.
    """

    def __init__(self, path: Path, dim: int) -> None:
        self._path = path
        self._record = np.dtype([("key", "<i8"), ("vector", "<f4", (dim,))])
        self._file: int | None = None
        self.rows = 0
        """Records in the file."""
        self.last_key = 0
        """Key of the last record, 0 without one."""

    def open(self, rows: int) -> None:
        """Open for appending behind the first `rows` records; fewer when the file has fewer. Raises OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        size = self._record.itemsize
        self.rows = min(rows, os.fstat(self._file).st_size // size)
        os.ftruncate(self._file, self.rows * size)
        if self.rows:
            last = np.frombuffer(os.pread(self._file, size, (self.rows - 1) * size), dtype=self._record)
            self.last_key = int(last["key"][0])

    def append(self, keys: NDArray[np.int64], vectors: Matrix) -> None:
        """Append records: keys (n,) above the last one, vectors (n, dim). Raises OSError."""
        if not len(keys) or self._file is None:
            return
        records = np.empty(len(keys), dtype=self._record)
        records["key"], records["vector"] = keys, vectors
        content = memoryview(records.tobytes())
        offset = self.rows * self._record.itemsize
        while content:
            written = os.pwrite(self._file, content, offset)
            content, offset = content[written:], offset + written
        self.rows += len(keys)
        self.last_key = int(keys[-1])

    def sync(self) -> int:
        """Have all records on disk; returns how many there are. Raises OSError."""
        if self._file is not None:
            os.fsync(self._file)
        return self.rows

    def batches(self) -> Iterator[tuple[NDArray[np.int64], Matrix]]:
        """Read all records: keys (n,) and vectors (n, dim), some at a time. Raises OSError."""
        with self._path.open("rb") as file:
            left = self.rows
            while left:
                records = np.fromfile(file, dtype=self._record, count=min(left, _BATCH))
                if not len(records):
                    raise OSError(f"{self._path.name} ends {left} records early")
                left -= len(records)
                yield records["key"].astype(np.int64), records["vector"].astype(np.float32)

    def close(self) -> None:
        """Close; the file stays."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
