"""Which requests are in the worker's hands right now, written where it outlives the worker.

When a worker ends, the server must know who may have ended it: the requests of the pass that ran, out of a
hundred that were waiting there. No message could still tell, so the worker notes their ids in a mapped file before
each pass and wipes them after it; that takes a few microseconds. The server maps the same file and reads it then.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

__all__ = ["PassMarks"]

_NUMBER: Final = struct.Struct("<q")
_MOST: Final = 1023
"""Ids that fit: far more than rows of a pass."""
_BYTES: Final = (_MOST + 1) * _NUMBER.size


class PassMarks:
    """The note, as the server or as the worker holds it.

    Args:
        path: The file; it may be removed once both sides hold it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _BYTES)

    @classmethod
    def create(cls) -> PassMarks:
        """Make an empty note in a new file of the temporary directory, readable by this user only."""
        descriptor, name = tempfile.mkstemp(prefix="clag-worker-")
        try:
            os.truncate(descriptor, _BYTES)
        finally:
            os.close(descriptor)
        return cls(Path(name))

    @contextlib.contextmanager
    def during(self, ids: Iterable[int]) -> Iterator[None]:
        """Note these requests while the block runs; a pass inside another's block counts for itself alone."""
        before = self._map[:_BYTES]
        self._write(list(ids)[:_MOST])
        try:
            yield
        finally:
            self._map[:_BYTES] = before

    def read(self) -> frozenset[int]:
        """Return the requests of the pass that runs, or that ran when the worker ended."""
        (count,) = _NUMBER.unpack_from(self._map)
        count = min(max(count, 0), _MOST)
        return frozenset(struct.unpack_from(f"<{count}q", self._map, _NUMBER.size))

    def remove_file(self) -> None:
        """Take the file's name away; who has mapped it keeps it."""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Give the note up."""
        self.remove_file()
        self._map.close()

    def _write(self, ids: list[int]) -> None:
        # The number last: a worker that is killed between the two writes accuses nobody.
        _NUMBER.pack_into(self._map, 0, 0)
        struct.pack_into(f"<{len(ids)}q", self._map, _NUMBER.size, *ids)
        _NUMBER.pack_into(self._map, 0, len(ids))
