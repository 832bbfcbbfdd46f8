"""Connections to the SQLite file, and what its errors are called.

Transactions are begun and ended by this package (`BEGIN IMMEDIATE` for writes, a snapshot for reads), never by the
driver, whose own rules differ between Python releases: SQLAlchemy is told that the connection autocommits.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from clag_server.types.errors import StorageFailed

BUSY_TIMEOUT_MS: Final = 5_000
"""How long a statement waits for another process's lock (a backup, a shell)."""

PAGE_BYTES: Final = 8_192
"""A memory with a 384-dimension vector takes about 2.2 KB: a page of 4 KB would hold one and waste the rest."""

WRITER_CACHE_KIB: Final = 65_536
READER_CACHE_KIB: Final = 16_384


def prepare_file(path: Path) -> None:
    """Make the file (0600) and its directory (0700) where they are missing; a file open to others is closed.

    SQLite gives its `-wal` and `-shm` files the permissions of the database.

    Raises:
        OSError: it cannot be made.
    """
    if not path.parent.exists():
        path.parent.mkdir(mode=0o700, parents=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    path.chmod(0o600)


def make_engine(path: Path) -> sa.Engine:
    """Return an engine whose connections open the existing file at `path`; it pools nothing."""
    address = f"file:{quote(str(path.absolute()))}?mode=rw"  # rw: a vanished file is an error, not a new database

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(
            address,
            uri=True,
            isolation_level=None,
            check_same_thread=False,  # each is used by one thread at a time, and closed by another
            timeout=BUSY_TIMEOUT_MS / 1000,
        )

    return sa.create_engine(
        "sqlite+pysqlite://",
        creator=connect,
        poolclass=NullPool,
        isolation_level="AUTOCOMMIT",
        hide_parameters=True,  # an error's text may reach a log, and parameters hold what users remember
    )


def connect_writer(engine: sa.Engine) -> sa.Connection:
    """Return the connection that writes: WAL, every commit on disk before it returns."""
    connection = engine.connect()
    for pragma in (
        f"page_size = {PAGE_BYTES}",  # takes effect in an empty file only
        "journal_mode = WAL",
        "synchronous = FULL",
        "foreign_keys = ON",
        # Deleted rows are overwritten, whatever SQLite was built with. Measured: deletes write 0.5% more bytes and
        # take 6% more CPU time, nothing else does.
        "secure_delete = ON",
        "temp_store = MEMORY",
        f"cache_size = -{WRITER_CACHE_KIB}",
    ):
        connection.exec_driver_sql(f"PRAGMA {pragma}")
    return connection


def connect_reader(engine: sa.Engine) -> sa.Connection:
    """Return a connection that cannot write."""
    connection = engine.connect()
    for pragma in ("query_only = ON", "temp_store = MEMORY", f"cache_size = -{READER_CACHE_KIB}"):
        connection.exec_driver_sql(f"PRAGMA {pragma}")
    return connection


def driver_of(connection: sa.Connection) -> sqlite3.Connection:
    """Return the driver's connection, for transaction control (a tenth of the cost of a statement through Core)."""
    driver = connection.connection.driver_connection
    if not isinstance(driver, sqlite3.Connection):
        raise TypeError(f"expected a SQLite connection, got {type(driver).__name__}")
    return driver


def as_storage_failure(error: Exception) -> Exception:
    """Return `StorageFailed` for what the disk or the file caused, and the error itself for a fault of ours."""
    original = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    if isinstance(original, OSError):
        return StorageFailed(str(original))
    ours = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.DataError, sqlite3.NotSupportedError)
    if isinstance(original, sqlite3.DatabaseError) and not isinstance(original, ours):
        return StorageFailed(str(original))
    return error


@contextmanager
def storage_errors() -> Iterator[None]:
    """Turn storage errors of the enclosed block into `StorageFailed`."""
    try:
        yield
    except (sa.exc.DBAPIError, sqlite3.Error, OSError) as error:
        failure = as_storage_failure(error)
        if failure is error:
            raise
        raise failure from error
