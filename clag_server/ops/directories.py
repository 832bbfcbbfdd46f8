"""Directories: those that only the server's user can write to, and how large they are.

Who can write to the directory of a socket can put another socket in its place and read every memory sent to it.
"""

from __future__ import annotations

import math
import os
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from clag_server.ops.errors import UnsafeDirectory

__all__ = ["DirectorySize", "directory_bytes", "private_directory"]

_LEAST_AGE_S: Final = 1.0
_PAYS_OFF: Final = 20.0


def private_directory(path: Path) -> Path:
    """Make the directory (mode 0700) or check that nobody else can write to it.

    Raises:
        UnsafeDirectory: It belongs to someone else, others can write to it, or it cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.stat()
    except OSError as error:
        raise UnsafeDirectory(path, f"cannot be made ({error.strerror})") from error
    if status.st_uid != os.geteuid():
        raise UnsafeDirectory(path, f"belongs to user {status.st_uid}, not to you")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnsafeDirectory(path, f"is writable for others (mode {stat.S_IMODE(status.st_mode):04o})")
    return path


def directory_bytes(path: Path) -> int:
    """Bytes of all files below a directory; files that vanish meanwhile do not count."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                total += os.lstat(Path(folder) / name).st_size
    return total


class DirectorySize:
    """Bytes of all files below a directory, measured again when the last measurement has paid off.

    Walking through the thousands of files of a large index takes longer than whatever else statistics need.

    Args:
        path: The directory.
        clock: Monotonic seconds.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._bytes = 0
        self._due_s = -math.inf
        self._measuring = threading.Lock()

    def __call__(self) -> int:
        """Return the size, at most a second or twenty times the duration of a measurement old; blocks."""
        if self._clock() < self._due_s:
            return self._bytes
        with self._measuring:
            begun_s = self._clock()
            if begun_s >= self._due_s:
                self._bytes = directory_bytes(self._path)
                ended_s = self._clock()
                self._due_s = ended_s + max(_LEAST_AGE_S, _PAYS_OFF * (ended_s - begun_s))
            return self._bytes
