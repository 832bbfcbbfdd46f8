"""What all parts of the SQLite catalog share: one way to write, one way to read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa

from clag_server.catalog.namespaces import require_live
from clag_server.catalog.ownership import Owner
from clag_server.catalog.readers import ReaderPool
from clag_server.catalog.transaction import WriteTx
from clag_server.catalog.writer import GroupWriter
from clag_server.types.errors import StorageFailed

T = TypeVar("T")


class SqliteBase:
    """An open (or not yet open) catalog file, with its writer and its readers."""

    def __init__(self, path: Path, *, readers: int) -> None:
        self._path = path
        self._reader_count = readers
        self._connection: sa.Connection | None = None
        self._owner: Owner | None = None
        self._writer: GroupWriter | None = None
        self._readers: ReaderPool | None = None

    def on_commit(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have `listener` called after every commit, in the writer's thread; returns what ends that.

        It must return at once. Raises StorageFailed before the catalog is open.
        """
        if self._writer is None:
            raise StorageFailed("the catalog is not open")
        listeners = self._writer.listeners
        listeners.append(listener)
        return lambda: listeners.remove(listener) if listener in listeners else None

    async def _write(self, write: Callable[[WriteTx], T]) -> T:
        """Run a write as (a part of) one transaction; it is on disk when this returns."""
        if self._writer is None:
            raise StorageFailed("the catalog is not open")
        return await self._writer.run(write)

    async def _write_into(self, ns: int, write: Callable[[WriteTx], T]) -> T:
        """Run a write into a namespace. Raises NamespaceDeleted for one that goes or is gone."""

        def checked(tx: WriteTx) -> T:
            require_live(tx, ns)
            return write(tx)

        return await self._write(checked)

    async def _read(self, read: Callable[[sa.Connection], T]) -> T:
        """Run a read on a snapshot that holds every finished write."""
        if self._readers is None:
            raise StorageFailed("the catalog is not open")
        return await self._readers.run(read)
