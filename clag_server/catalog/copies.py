"""Copies of a catalog file: complete or absent, for their owner's eyes only.

A copy is written beside its target under another name, brought to disk, and only then named. What a kill left
behind is overwritten by the next copy to the same target.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

from clag_server.catalog.connections import BUSY_TIMEOUT_MS, storage_errors
from clag_server.catalog.migrate import HEAD
from clag_server.types.errors import StorageFailed

T = TypeVar("T")
Progress = Callable[[int, int], None]
"""Gets (done, total)."""

STEP_PAGES: Final = 256
"""Pages of one step of a backup, 2 MiB: between steps it reports, and can be stopped."""


class CopyStoppedError(Exception):
    """The caller no longer wants the copy."""


def backup_file(source: Path, target: Path, progress: Progress, *, stop: threading.Event | None = None) -> None:
    """Copy a catalog as of one moment; a server may have it open and go on writing. Blocks.

    Args:
        source: The catalog's file; it is only read.
        target: The copy, which must not exist; readable by its owner only.
        progress: Gets pages (done, total) in the calling thread.
        stop: When set, the copy ends with CopyStoppedError.

    Raises:
        StorageFailed: the source is no sound catalog, the target exists or cannot be written.
    """
    _require_file(source)
    with storage_errors(), new_file(target) as part, closing(connect(source, "ro")) as reader:
        _schema_of(reader, source)
        # A backup starts over whenever another connection writes, unless it is inside a snapshot.
        reader.execute("BEGIN")
        reader.execute("SELECT revision FROM counters").fetchone()
        _copy_pages(reader, part, progress, stop)


def check_file(path: Path) -> str:
    """Check that a file is a sound catalog that this program can open. Blocks; reads the whole file.

    Returns:
        The revision of its schema.

    Raises:
        StorageFailed: it is damaged, a newer program's, or no catalog.
    """
    _require_file(path)
    with storage_errors(), closing(connect(path, "ro")) as connection:
        version = _schema_of(connection, path)
        _quick_check(connection, path)
        if connection.execute("SELECT count(*) FROM counters").fetchone() != (1,):
            raise StorageFailed(f"{path} lacks the catalog's counters")
    return version


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """Give the name to write a new file under (made, empty, 0600); it becomes `target` when the block ends well.

    Raises:
        StorageFailed: the target exists, or another copy to it is being made.
        OSError: it cannot be written.
    """
    _refuse_existing(target)
    part = target.with_name(f"{target.name}.part")
    fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _lock(fd, part, target)
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, 0)
        _remove_companions(part)  # SQLite would take an old one for the new file's
        try:
            yield part
            os.fsync(fd)
            _refuse_existing(target)
            part.rename(target)
        except BaseException:
            part.unlink(missing_ok=True)
            _remove_companions(part)
            raise
        _sync_directory(target.parent)
    finally:
        os.close(fd)


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open a database that exists, "ro" or "rw"; transactions are the caller's."""
    return sqlite3.connect(
        address(path, mode), uri=True, isolation_level=None, check_same_thread=False, timeout=BUSY_TIMEOUT_MS / 1000
    )


def address(path: Path, mode: str) -> str:
    """Return the URI of a database file."""
    return f"file:{quote(str(path.absolute()))}?mode={mode}"


async def run_stoppable(copy: Callable[[threading.Event], T]) -> T:
    """Run a copy in a thread of its own. A caller that is cancelled waits until the copy has ended and cleaned up.

    Args:
        copy: Gets the event that asks it to end with CopyStoppedError.
    """
    stop = threading.Event()
    thread = ThreadPoolExecutor(1, thread_name_prefix="catalog-copy")
    try:
        future = asyncio.get_running_loop().run_in_executor(thread, copy, stop)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait([future])
            if not future.cancelled():
                future.exception()  # it was stopped: nobody asks for its outcome any more
            raise
    finally:
        thread.shutdown(wait=False)


def _copy_pages(reader: sqlite3.Connection, part: Path, progress: Progress, stop: threading.Event | None) -> None:
    def report(_: int, remaining: int, total: int) -> None:
        if stop is not None and stop.is_set():
            raise CopyStoppedError
        progress(total - remaining, total)

    with closing(connect(part, "rw")) as writer:
        writer.execute("PRAGMA synchronous = OFF")  # the whole file is synced at the end
        reader.backup(writer, pages=STEP_PAGES, progress=report)
        writer.execute("PRAGMA journal_mode = DELETE")  # one file, readable from a read-only disk
        _quick_check(writer, part)


def _lock(fd: int, part: Path, target: Path) -> None:
    """Keep two copies to one target apart.

    The lock may be won on a file that its writer has named meanwhile: that one is finished, and not ours.
    """
    busy = StorageFailed(f"another copy to {target} is being made")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise busy from None
    if not part.exists() or not os.path.samestat(part.stat(), os.fstat(fd)):
        raise busy


def _remove_companions(database: Path) -> None:
    """Remove the files that SQLite keeps beside a database."""
    for suffix in ("-journal", "-wal", "-shm"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)


def _refuse_existing(target: Path) -> None:
    if os.path.lexists(target):
        raise StorageFailed(f"{target} exists already: choose another name, a copy never overwrites a file")


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise StorageFailed(f"there is no file {path}")


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _schema_of(connection: sqlite3.Connection, path: Path) -> str:
    """Return the schema's revision of a catalog that this program knows."""
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not {"alembic_version", "counters", "memories"} <= tables:
        raise StorageFailed(f"{path} is no catalog")
    row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    version = "" if row is None else str(row[0])
    if not version or version > HEAD:
        raise StorageFailed(f"{path} has schema {version or 'none'}, this program knows up to {HEAD}")
    return version


def _quick_check(connection: sqlite3.Connection, path: Path) -> None:
    found = [str(row[0]) for row in connection.execute("PRAGMA quick_check(1)")]
    if found != ["ok"]:
        raise StorageFailed(f"{path} is damaged: {'; '.join(found)}")
