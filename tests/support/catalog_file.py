"""A server's catalog file, looked into from beside it: when a piece of work is half done, and what is left."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

PATIENCE_S = 30.0


@contextmanager
def beside(data_dir: Path) -> Iterator[sqlite3.Connection]:
    """A connection that only reads: it cannot recover or change anything, whoever has the file open."""
    with closing(sqlite3.connect(f"file:{data_dir / 'catalog.db'}?mode=ro", uri=True)) as connection:
        yield connection


def seen(data_dir: Path, question: str) -> int:
    """The number that a question of one row and column answers."""
    with beside(data_dir) as connection:
        return int(connection.execute(question).fetchone()[0])


def wait_until(data_dir: Path, question: str) -> None:
    """Ask until the answer is not 0; as often as the file allows, because the moment is short.

    Raises:
        AssertionError: It did not come to that.
    """
    deadline = time.monotonic() + PATIENCE_S
    with beside(data_dir) as connection:
        while not connection.execute(question).fetchone()[0]:
            assert time.monotonic() < deadline, question


def holders(data_dir: Path, word: str) -> set[str]:
    """Tables with a value that has the word in it, in whatever case, as text or in a blob."""
    wanted = word.lower().encode()
    found = set()
    with beside(data_dir) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in names:
            for row in connection.execute(f'SELECT * FROM "{name}"'):  # noqa: S608 (a name of the catalog)
                values = (value if isinstance(value, bytes) else str(value).encode() for value in row)
                if any(wanted in value.lower() for value in values):
                    found.add(name)
    return found


def files_with(directory: Path, word: str) -> set[str]:
    """Files below a directory that have the word in them, in whatever case, by their relative names."""
    wanted = word.lower().encode()
    return {
        str(path.relative_to(directory))
        for path in directory.rglob("*")
        if path.is_file() and wanted in path.read_bytes().lower()
    }
