"""Directories that only the server's user can write to.

Who can write to the directory of a socket can put another socket in its place and read every memory sent to it.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from clag_server.ops.errors import UnsafeDirectory

__all__ = ["directory_bytes", "private_directory"]


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
