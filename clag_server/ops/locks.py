"""Locks that keep two servers apart: on a data directory, a socket, a TCP port (case O1).

The lock is `flock` on a file, so the kernel frees it however the holder ends; the file only says who that was.
The file is never removed: a remove would race with the next holder's open.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Self

from clag_server.ops.errors import AlreadyRunning, UnusableFile

__all__ = ["FileLock", "port_lock_path"]


class FileLock:
    """An exclusive lock on a file, held until `release` or the end of the process.

    Args:
        path: The lock file; its directory must exist.
        what: What it protects, for the message ("the data directory PATH").
    """

    def __init__(self, path: Path, *, what: str) -> None:
        self._path = path
        self._what = what
        self._fd: int | None = None

    def acquire(self) -> Self:
        """Take the lock at once.

        Raises:
            AlreadyRunning: Another process has it; the message names its process id.
            UnusableFile: The lock file cannot be opened.
        """
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise UnusableFile(f"cannot open the lock file {self._path}: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = _read_pid(fd)
            os.close(fd)
            raise AlreadyRunning(self._what, pid=pid) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode("ascii"), 0)
        self._fd = fd
        return self

    def release(self) -> None:
        """Give the lock up; harmless when it is not held."""
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def port_lock_path(directory: Path, host: str, port: int) -> Path:
    """Lock file of a TCP address."""
    return directory / f"tcp-{host.replace(':', '_').replace('/', '_')}-{port}.lock"


def _read_pid(fd: int) -> int | None:
    text = os.pread(fd, 32, 0).strip()
    return int(text) if text.isdigit() else None
