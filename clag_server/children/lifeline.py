"""The child's side of the life line: gone when the parent is gone, and a way to say "ready".

The parent keeps one end of a socket pair, the child the other. The parent never writes; when it ends, however
it ends (kill -9 included), the kernel closes its end, the child's watcher reads end-of-file and ends the whole
process group at once. On Linux the kernel also signals the child when its parent dies (`PR_SET_PDEATHSIG`),
which reaches a child whose interpreter is stuck in native code.

The child writes one JSON object a line: `{"progress": "step"}`, `{"ready": {...}}` or `{"fatal": "reason"}`.
Nothing here imports more than the standard library.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FATAL_EXIT_CODE", "attach", "fatal", "is_attached", "progress", "ready"]

FATAL_EXIT_CODE = 78
"""Exit status of a child whose fault will not go away by a restart (EX_CONFIG of sysexits)."""

_PR_SET_PDEATHSIG = 1

_line: socket.socket | None = None


def attach(fd: int) -> None:
    """Take over the inherited life line and start watching it.

    Args:
        fd: File descriptor of the child's end, inherited from the parent.

    Raises:
        OSError: `fd` is not an open socket.
    """
    global _line
    _line = socket.socket(fileno=fd)
    _line.setblocking(True)
    # Grandchildren must not hold the line open after this process.
    os.set_inheritable(fd, False)
    _ask_kernel_for_parent_death_signal()
    threading.Thread(target=_watch, args=(_line,), name="lifeline", daemon=True).start()


def is_attached() -> bool:
    """Return whether this process was started by a supervisor."""
    return _line is not None


def ready(info: Mapping[str, str | int | float | bool] | None = None) -> None:
    """Tell the parent that this child serves; `info` is handed to its `on_ready`.

    Does nothing in a process that was started by hand.
    """
    _send({"ready": dict(info or {})})


def progress(step: str) -> None:
    """Tell the parent what this child does before it is ready, such as `reading the weights`.

    Does nothing in a process that was started by hand.
    """
    _send({"progress": step})


def fatal(reason: str) -> NoReturn:
    """Tell the parent that a restart will not help, and end this process.

    Args:
        reason: One sentence for the status report: what is wrong and what to do.
    """
    _send({"fatal": reason})
    sys.stderr.write(f"{reason}\n")
    sys.stderr.flush()
    os._exit(FATAL_EXIT_CODE)


def _send(message: dict[str, object]) -> None:
    if _line is None:
        return
    _line.sendall(json.dumps(message).encode() + b"\n")


def _watch(line: socket.socket) -> None:
    try:
        while line.recv(1024):
            pass
    except OSError:
        pass  # a reset line is as dead as a closed one
    _die()


def _die() -> NoReturn:
    # The supervisor makes every child the leader of its own group, so this takes its children along. A child
    # started by hand shares its shell's group and must end alone.
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def _ask_kernel_for_parent_death_signal() -> None:
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
