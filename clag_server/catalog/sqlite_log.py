"""The part of the SQLite catalog for readers of its log and for operators; promises are said in `api_log`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from clag_server.catalog import changes, history, operations
from clag_server.catalog.copies import backup_file, run_stoppable
from clag_server.catalog.ownership import Owner
from clag_server.catalog.snapshot import snapshot_file
from clag_server.catalog.sqlite_base import SqliteBase
from clag_server.types.change import ChangeBatch, HistoryPage
from clag_server.types.errors import StorageFailed
from clag_server.types.operation import Operation, OperationKind


class SqliteLog(SqliteBase):
    """Implements `ChangeLog`, `OperationStore` and `CatalogCopies`, and says which catalog this is and whose."""

    @property
    def catalog_id(self) -> str:
        """Name of this catalog among all catalogs (32 hexadecimal characters); open it before."""
        return self._owned().catalog_id

    @property
    def owner_epoch(self) -> int | None:
        """Number of this opening of the catalog; None while a full disk keeps it from being written down."""
        return self._owned().epoch

    # --- changes and history
    async def changes(self, *, after: int, limit: int) -> ChangeBatch:
        """Read the change log."""
        return await self._read(lambda c: changes.read(c, after=after, limit=limit))

    async def oldest_change(self) -> int:
        """Return the smallest revision to resume after."""
        return await self._read(changes.oldest)

    async def compact_changes(self, *, before_ns: int, keep: int, limit: int) -> int:
        """Forget the oldest changes."""
        through = await self._read(lambda c: changes.newest_to_compact(c, keep=keep))
        if through is None:
            return 0
        return await self._write(lambda tx: changes.compact(tx, through=through, before_ns=before_ns, limit=limit))

    async def memory_history(self, ns: int, memory_id: str, *, before: int | None, limit: int) -> HistoryPage:
        """Return a page of a memory's history."""
        return await self._read(lambda c: history.read(c, ns, memory_id, before=before, limit=limit))

    # --- operations
    async def add_operation(self, operation: Operation) -> Operation:
        """Store an operation once."""
        return await self._write(lambda tx: operations.add(tx, operation))

    async def save_operation(self, operation: Operation) -> None:
        """Store how an operation stands."""
        await self._write(lambda tx: operations.save(tx, operation))

    async def ask_cancel(self, operation_id: str) -> Operation:
        """Ask an operation to stop."""
        return await self._write(lambda tx: operations.ask_cancel(tx, operation_id))

    async def operation(self, operation_id: str) -> Operation:
        """Return one operation."""
        return await self._read(lambda c: operations.get(c, operation_id))

    async def operations(self, *, ns: int | None, before: str, limit: int) -> Sequence[Operation]:
        """Return a page of operations."""
        return await self._read(lambda c: operations.page(c, ns=ns, before=before, limit=limit))

    async def unfinished_operations(self, kinds: Sequence[OperationKind] | None = None) -> Sequence[Operation]:
        """Return operations that did not end."""
        return await self._read(lambda c: operations.unfinished(c, kinds))

    async def forget_operations(self, *, ended_before_ns: int) -> int:
        """Remove operations that ended long ago."""
        return await self._write(lambda tx: operations.forget(tx, ended_before_ns=ended_before_ns))

    # --- copies
    async def snapshot(self, ns: int, path: Path) -> int:
        """Copy one namespace into a catalog of its own."""
        return await run_stoppable(lambda stop: snapshot_file(self._path, ns, path, stop))

    async def backup(self, path: Path, *, progress: Callable[[int, int], None]) -> None:
        """Copy the whole catalog; `progress` is called in the event loop."""
        loop = asyncio.get_running_loop()

        def report(done: int, total: int) -> None:
            loop.call_soon_threadsafe(progress, done, total)

        await run_stoppable(lambda stop: backup_file(self._path, path, report, stop=stop))

    def _owned(self) -> Owner:
        if self._owner is None:
            raise StorageFailed("the catalog is not open")
        return self._owner
