"""One namespace, as of one revision, in a catalog file of its own.

SQLite copies the rows itself, from a snapshot of the source into an attached file, so writers go on and the event
loop stays free. The change log, the outbox, and what belongs to open calls of clients stay behind.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from clag_server.catalog.connections import PAGE_BYTES, storage_errors
from clag_server.catalog.copies import CopyStoppedError, address, connect, new_file
from clag_server.types.errors import NotFound

COPIED: Final = (
    "memory_history",
    "link_targets",
    "sessions",
    "clusters",
    "cluster_history",
    "episodes",
)
"""Tables whose rows of the namespace are copied as they are, after `namespaces` and `memories` themselves."""

LEFT_OUT: Final = (
    "changes",
    "create_requests",
    "edit_requests",
    "import_numbers",
    "index_ops",
    "ingest_streams",
    "operations",
)
"""Tables that stay empty in a snapshot."""

_MEMORIES_PER_STEP: Final = 5_000
"""Memories copied in one statement, about 10 MB: between steps a copy can be stopped."""

_CREATE: Final = re.compile(r"^CREATE (TABLE|VIRTUAL TABLE|INDEX|UNIQUE INDEX) ")


def snapshot_file(source: Path, ns: int, target: Path, stop: threading.Event) -> int:
    """Copy a namespace (see `catalog.api_log.CatalogCopies.snapshot`). Blocks.

    Returns:
        The revision that the copy shows.

    Raises:
        NotFound: there is no such namespace.
        StorageFailed: the target exists or cannot be written.
        CopyStoppedError: `stop` was set.
    """
    with storage_errors(), new_file(target) as part, closing(connect(source, "rw")) as connection:
        connection.execute("ATTACH ? AS copy", (address(part, "rw"),))
        for pragma in (f"page_size = {PAGE_BYTES}", "journal_mode = OFF", "synchronous = OFF"):
            connection.execute(f"PRAGMA copy.{pragma}")  # a copy that fails is thrown away, and synced at the end
        connection.execute("BEGIN")
        revision = int(connection.execute("SELECT revision FROM main.counters").fetchone()[0])
        if connection.execute("SELECT 1 FROM main.namespaces WHERE ns = ?", (ns,)).fetchone() is None:
            raise NotFound("namespace", str(ns))
        for statement in _definitions(connection, ns, "table"):
            connection.execute(statement)
        for _ in _copy_rows(connection, ns):
            if stop.is_set():
                raise CopyStoppedError
        for statement in _definitions(connection, ns, "index"):
            connection.execute(statement)
        connection.execute("COMMIT")
        connection.execute("DETACH copy")
    return revision


def _definitions(connection: sqlite3.Connection, ns: int, kind: str) -> Iterator[str]:
    """Yield the statements that make the copy's tables or indexes; of full-text tables, the namespace's own."""
    rows = connection.execute(
        "SELECT name, sql FROM main.sqlite_master WHERE type = ? AND sql IS NOT NULL", (kind,)
    )
    for name, sql in rows.fetchall():
        lexical = name.startswith(("fts_", "terms_"))
        if name.startswith("sqlite_") or (lexical and name not in (f"fts_{ns}", f"terms_{ns}")):
            continue
        yield _CREATE.sub(r"CREATE \1 copy.", sql)


def _copy_rows(connection: sqlite3.Connection, ns: int) -> Iterator[None]:
    """Copy all rows, in steps."""
    connection.execute("INSERT INTO copy.alembic_version SELECT * FROM main.alembic_version")
    connection.execute("INSERT INTO copy.counters SELECT * FROM main.counters")
    connection.execute(
        "UPDATE copy.counters SET catalog_id = ?, owner = '', owner_epoch = 0, compacted_through = revision",
        (uuid.uuid4().hex,),
    )
    connection.execute("INSERT INTO copy.namespaces SELECT * FROM main.namespaces WHERE ns = ?", (ns,))
    yield from _copy_memories(connection, ns)
    connection.execute(
        "INSERT INTO copy.failures SELECT * FROM main.failures WHERE key IN (SELECT key FROM copy.memories)"
    )
    for table in COPIED:
        sql = f"INSERT INTO copy.{table} SELECT * FROM main.{table} WHERE ns = ?"  # noqa: S608 (names of ours)
        connection.execute(sql, (ns,))
        yield
    yield from _copy_lexical(connection, ns)


def _copy_memories(connection: sqlite3.Connection, ns: int) -> Iterator[None]:
    page = "SELECT key FROM main.memories WHERE ns = ? AND key > ? ORDER BY key LIMIT ?"
    last = f"SELECT max(key) FROM ({page})"  # noqa: S608 (a constant)
    after = 0
    while (through := connection.execute(last, (ns, after, _MEMORIES_PER_STEP)).fetchone()[0]) is not None:
        connection.execute(
            "INSERT INTO copy.memories SELECT * FROM main.memories WHERE ns = ? AND key > ? AND key <= ?",
            (ns, after, through),
        )
        after = through
        yield


def _copy_lexical(connection: sqlite3.Connection, ns: int) -> Iterator[None]:
    """Copy the full-text index by its inner tables: nothing is tokenized again."""
    inner = connection.execute(
        "SELECT name FROM main.sqlite_master WHERE type = 'table' AND name GLOB ?", (f"fts_{ns}_*",)
    )
    for (name,) in inner.fetchall():
        connection.execute(f"DELETE FROM copy.{name}")  # noqa: S608 (our integer in it)
        connection.execute(f"INSERT INTO copy.{name} SELECT * FROM main.{name}")  # noqa: S608
        yield
