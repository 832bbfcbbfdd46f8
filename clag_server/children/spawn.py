"""Starting one child process: a fresh interpreter with a life line, and what belongs to it while it runs."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clag_server.children.child_io import StderrTail, forward_output

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Launch", "Running", "signal_group", "spawn"]


@dataclass(frozen=True, slots=True)
class Launch:
    """What one start of a child gets beyond the constant arguments."""

    args: Sequence[str] = ()
    """Appended to the constant arguments."""
    inherit: Sequence[socket.socket] = ()
    """Sockets that the child inherits under the same descriptor number; closed here after the start."""


@dataclass(slots=True)
class Running:
    """One started process and what belongs to it."""

    process: asyncio.subprocess.Process
    line: asyncio.StreamReader
    line_writer: asyncio.StreamWriter
    output: asyncio.Task[None]
    tail: StderrTail
    started_s: float
    ready_s: float | None = None
    fatal: str | None = None
    asked_reason: str | None = None


async def spawn(name: str, module: str, args: Sequence[str], env: Mapping[str, str], launch: Launch) -> Running:
    """Start a child.

    Args:
        name: For logs.
        module: What the child runs as `__main__`.
        args: Its constant arguments.
        env: Variables added to the inherited environment.
        launch: What this start adds; its sockets are closed here, whether the start works or not.

    Raises:
        OSError: The system cannot start it.
    """
    ours, theirs = socket.socketpair()
    inherited = [theirs, *launch.inherit]
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "clag_server.children.boot",
            str(theirs.fileno()),
            module,
            *args,
            *launch.args,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            pass_fds=[one.fileno() for one in inherited],
            # Inheritance of the parent's environment, not a setting: PATH, HOME, CUDA_VISIBLE_DEVICES.
            env={**os.environ, **env},
            start_new_session=True,
        )
    except OSError:
        ours.close()
        raise
    finally:
        for one in inherited:
            one.close()
    reader, writer = await asyncio.open_connection(sock=ours)
    tail = StderrTail()
    stdout = process.stdout
    if stdout is None:  # cannot happen with PIPE; narrows the type
        raise OSError("the child has no output pipe")
    output = asyncio.create_task(forward_output(name, stdout, tail), name=f"output of {name}")
    return Running(process, reader, writer, output, tail, time.monotonic())


def signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Signal a child and its own children; does nothing when they have ended."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return
    except PermissionError:
        return  # macOS answers EPERM for a group whose members have all ended
