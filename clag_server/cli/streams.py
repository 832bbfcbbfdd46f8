"""Standard output that says in one line why it cannot be written, and standard streams that are always there."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, Final, TextIO

from clag_server.cli.errors import CliError, ExitCode

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["discard_output", "prepare_streams"]

_IN: Final = 0
_OUT: Final = 1
_ERR: Final = 2


class _Output(io.FileIO):
    """Standard output; a failed write is a `CliError`. A reader that left stays a BrokenPipeError."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            why = "standard output is closed" if error.errno == errno.EBADF else error.strerror
            raise CliError(f"cannot write the output: {why}", ExitCode.SERVER) from error


def prepare_streams() -> None:
    """Set the standard streams up for commands.

    Paths and memories may hold what the terminal's encoding lacks; that must not end a command. A stream that the
    caller closed gets its number back, because the next file or socket that is opened would get it otherwise, and
    the output with it; reading and writing them still fails.
    """
    if sys.stdin is None:
        _occupy(_IN, os.O_WRONLY)
    if sys.stdout is None:
        _occupy(_OUT, os.O_RDONLY)
    if sys.stderr is None:
        _occupy(_ERR, os.O_WRONLY)  # errors go nowhere; the exit code still tells
        sys.stderr = _text(io.FileIO(_ERR, "w", closefd=False), "utf-8")
    encoding = sys.stdout.encoding if sys.stdout is not None else "utf-8"
    sys.stdout = _text(_Output(_OUT, "w", closefd=False), encoding)
    reconfigure = getattr(sys.stderr, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def discard_output() -> None:
    """Let what is still unwritten vanish: Python would complain once more at exit."""
    _occupy(_OUT, os.O_WRONLY)


def _text(raw: io.FileIO, encoding: str) -> TextIO:
    buffered = io.BufferedWriter(raw)
    return io.TextIOWrapper(buffered, encoding, errors="backslashreplace", line_buffering=raw.isatty())


def _occupy(number: int, mode: int) -> None:
    opened = os.open(os.devnull, mode)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)
