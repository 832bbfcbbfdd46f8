"""What `clag ingest` reads, as items of a stream: every line an item, also the bad ones.

A bad line goes as an empty memory, which the server rejects: so the server's counts include it, and the sequence
number of each line stays what it is when the file is read again to resume.
"""

from __future__ import annotations

import asyncio
import bisect
import hashlib
import os
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import BinaryIO, Final

from clag.v1 import types_pb2

from clag_server.cli.errors import CliError, ExitCode
from clag_server.cli.lines import BadLine, Line, parse_line, read_lines

__all__ = ["Source", "default_stream_id", "open_file"]

_ID_BYTES: Final = 4096
"""How much of the first line goes into the stream's id."""

_WAITING_LINES: Final = 256


class Source:
    """The items of one file or pipe.

    Args:
        file: Where the lines come from.

    Attributes:
        bad: What is wrong with the bad lines, by sequence number, until they are taken out.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._shift_starts: list[int] = [1]
        self._shifts: list[int] = [0]
        self.bad: dict[int, BadLine] = {}

    def items(self) -> Iterator[types_pb2.MemoryInput]:
        """Read the items of a file; reading never waits for long."""
        for line in read_lines(self._file):
            yield self._item(line)

    async def arriving_items(self) -> AsyncIterator[types_pb2.MemoryInput]:
        """Read the items of a pipe, whose other end may pause for hours, without blocking the event loop.

        The reading thread is a daemon: an interrupted command must not wait for the pipe.
        """
        loop = asyncio.get_running_loop()
        waiting: asyncio.Queue[Line | OSError | None] = asyncio.Queue(_WAITING_LINES)

        def hand_over(value: Line | OSError | None) -> bool:
            putting = waiting.put(value)
            try:
                asyncio.run_coroutine_threadsafe(putting, loop).result()
            except (RuntimeError, CancelledError):
                putting.close()
                return False  # the loop is closed: nobody waits for more
            return True

        def read() -> None:
            try:
                all_read = all(hand_over(line) for line in read_lines(self._file))
            except OSError as error:
                hand_over(error)
            else:
                if all_read:
                    hand_over(None)

        threading.Thread(target=read, name="clag-ingest-stdin", daemon=True).start()
        while (line := await waiting.get()) is not None:
            if isinstance(line, OSError):
                raise line
            yield self._item(line)

    def number(self, seq: int) -> int:
        """The line number of an item that was read."""
        return seq + self._shifts[bisect.bisect_right(self._shift_starts, seq) - 1]

    def _item(self, line: Line) -> types_pb2.MemoryInput:
        shift = line.number - line.seq
        if shift != self._shifts[-1]:
            self._shift_starts.append(line.seq)
            self._shifts.append(shift)
        try:
            return parse_line(line)
        except BadLine as bad:
            self.bad[line.seq] = bad
            return types_pb2.MemoryInput()


def open_file(path: str) -> BinaryIO:
    """Open a file, or standard input for "-".

    Raises:
        CliError: It cannot be read.
    """
    if path == "-":
        if sys.stdin is None:
            raise CliError("cannot read standard input: it is closed", ExitCode.USAGE)
        # A file object of our own: the interpreter could not close its own while the thread waits in it.
        return os.fdopen(os.dup(0), "rb")
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}", ExitCode.USAGE) from error


def default_stream_id(namespace: str, path: str, file: BinaryIO) -> str:
    """Name the stream of a file: the same file into the same namespace has the same name.

    Only the first line counts of the contents, so that a file which grows keeps its stream.

    Args:
        namespace: Where the memories go.
        path: The file; "-" makes a random name.
        file: The open file; its position is kept.
    """
    if path == "-":
        return f"stdin-{uuid.uuid4().hex}"
    first = file.readline(_ID_BYTES)
    file.seek(0)
    digest = hashlib.sha256(b"\0".join((namespace.encode(), os.fsencode(Path(path).resolve()), first.rstrip())))
    return f"file-{digest.hexdigest()[:32]}"
