"""Drills of the catalog's disk: full, turned read-only, its log deleted; and the mounts that they need."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import grpc
from clag.v1 import types_pb2

from bench.faults_site import NotRecovered, Site, Skipped

_CLONE_NEWNS: Final = 0x00020000
_BLOCK: Final = b"\0" * 65_536


def own_mounts() -> str:
    """Give this process mounts of its own, which end with it; returns why that cannot be, "" when it can."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        return f"mounts need root: {os.strerror(ctypes.get_errno())}"
    made = subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True, text=True, check=False)
    return made.stderr.strip()


@contextmanager
def mounted(path: Path, *, mib: int) -> Iterator[None]:
    """A file system in memory of some MiB at a directory. Raises Skipped where that is not allowed."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=0700", "tmpfs", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Skipped(f"no file system of its own: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=False)


class Ballast:
    """A file that takes all the room that a file system has left."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "ballast"

    def fill(self) -> None:
        try:
            with self._path.open("ab", buffering=0) as file:
                while True:
                    file.write(_BLOCK)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise

    def drop(self) -> None:
        self._path.unlink()


async def full(site: Site) -> str:
    """The catalog's disk is full: writes are refused with the reason, and accepted again when there is room."""
    await site.server.start()
    async with site.client() as client:
        await site.begin(client)
        ballast = Ballast(site.server.data_dir)
        ballast.fill()
        refusal = await site.refused(client)
        _check(refusal.code, refusal.reason)
        answer_s = await site.answers(client)
        ballast.drop()
        started = time.perf_counter()
        await site.fill(client, 50)
        again_s = time.perf_counter() - started
    return f"refused with {refusal.message[:60]!r}, asked meanwhile {answer_s:.1f} s; stores {again_s:.1f} s after"


async def read_only(site: Site) -> str:
    """The catalog's files are made unwritable under a running server, as an administrator's slip does."""
    await site.server.start()
    async with site.client() as client:
        await site.begin(client)
        files = [path for path in site.server.data_dir.glob("catalog.db*") if not path.name.endswith("-shm")]
        _immutable(files, on=True)
        try:
            refusal = await site.refused(client)
            _check(refusal.code, refusal.reason)
            answer_s = await site.answers(client)
        finally:
            _immutable(files, on=False)
        started = time.perf_counter()
        await site.fill(client, 50)
        again_s = time.perf_counter() - started
    return f"refused with {refusal.message[:60]!r}, asked meanwhile {answer_s:.1f} s; stores {again_s:.1f} s after"


async def log_deleted(site: Site) -> str:
    """The write-ahead log is deleted after an orderly stop, which had emptied it.

    After a kill the log holds what is acknowledged and not yet in the database: deleting it then loses that.
    """
    await site.server.start()
    async with site.client() as client:
        await site.begin(client)
    await site.server.stop()
    left = 0
    for path in site.server.data_dir.glob("catalog.db-*"):
        left += path.stat().st_size
        path.unlink()
    await site.server.start()
    return f"{left} bytes of log were left by the stop"


def _check(code: grpc.StatusCode, reason: int) -> None:
    if code is not grpc.StatusCode.UNAVAILABLE or reason != types_pb2.ERROR_REASON_STORAGE_DEGRADED:
        raise NotRecovered(f"a write that cannot be stored was refused with {code.name}, reason {reason}")


def _immutable(files: list[Path], *, on: bool) -> None:
    done = subprocess.run(
        ["chattr", "+i" if on else "-i", *map(str, files)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise Skipped(f"files cannot be made unwritable: {done.stderr.strip()}")
