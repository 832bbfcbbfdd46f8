"""Writes a catalog file as SQL text, so that a later release can prove that it still opens it.

Usage: `python -m tests.catalog.dump CATALOG > tests/catalog/schema_NNNN.sql`, run with the release that wrote the
file. The file should hold rows in every table; it must not be open elsewhere.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

_INNER_OF_FTS = re.compile(r"fts_\d+_")


def dump(path: Path) -> Iterator[str]:
    """Yield the statements that make the database again: tables, rows, then indexes."""
    with closing(sqlite3.connect(path)) as connection:
        defined = connection.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
        wanted = [row for row in defined if not row[1].startswith("sqlite_") and not _INNER_OF_FTS.match(row[1])]
        for kind, name, sql in wanted:
            if kind == "table":
                yield f"{sql};"
                if not name.startswith("terms_"):  # a view of another table
                    yield from _rows(connection, name)
        for kind, _, sql in wanted:
            if kind == "index":
                yield f"{sql};"


def load(script: Path, path: Path) -> None:
    """Make the database of a dump, in a new file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(f"BEGIN; {script.read_text()} COMMIT;")


def _rows(connection: sqlite3.Connection, table: str) -> Iterator[str]:
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    if table.startswith("fts_"):
        columns.insert(0, "rowid")
    quoted = " || ', ' || ".join(f"quote({column})" for column in columns)
    for (values,) in connection.execute(f"SELECT {quoted} FROM {table} ORDER BY 1"):  # noqa: S608 (our tables)
        yield f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values});"  # noqa: S608 (quoted by SQLite)


if __name__ == "__main__":
    sys.stdout.writelines(f"{statement}\n" for statement in dump(Path(sys.argv[1])))
