"""What a catalog promises to readers of its log and to operators: changes, history, operations, copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from clag_server.types.change import ChangeBatch, HistoryPage
from clag_server.types.operation import Operation, OperationKind


class ChangeLog(Protocol):
    """The change log, and the history of single memories."""

    async def changes(self, *, after: int, limit: int) -> ChangeBatch:
        """Read the log of all namespaces in order of revisions, looking at most at `limit` rows.

        Raises LogCompacted when rows after `after` are gone.
        """

    async def oldest_change(self) -> int:
        """The smallest revision that `changes` can resume after."""

    async def compact_changes(self, *, before_ns: int, keep: int, limit: int) -> int:
        """Forget up to `limit` of the oldest rows that are older than `before_ns` and not among the newest `keep`.

        Returns how many went. What the vector index has not applied yet is kept elsewhere (the outbox).
        """

    async def memory_history(self, ns: int, memory_id: str, *, before: int | None, limit: int) -> HistoryPage:
        """Page through what happened to a memory, newest first. Raises NotFound."""


class OperationStore(Protocol):
    """Long-running operations, durable."""

    async def add_operation(self, operation: Operation) -> Operation:
        """Store a new operation, or return the one that the same `request_id` (of the same namespace) made.

        Raises RequestIdReused when that one was another request.
        """

    async def save_operation(self, operation: Operation) -> None:
        """Replace an operation's state, phase, counts, progress, result, error and end time."""

    async def ask_cancel(self, operation_id: str) -> Operation:
        """Note that a client wants it to stop (nothing when it ended). Raises NotFound."""

    async def operation(self, operation_id: str) -> Operation:
        """Return one or raise NotFound."""

    async def operations(self, *, ns: int | None, before: str, limit: int) -> Sequence[Operation]:
        """Page through operations, newest first; `before` is the last id of the page before ("" for the first)."""

    async def unfinished_operations(self, kinds: Sequence[OperationKind] | None = None) -> Sequence[Operation]:
        """Those that are PENDING or RUNNING, oldest first."""

    async def forget_operations(self, *, ended_before_ns: int) -> int:
        """Remove operations that ended before; returns how many."""


class CatalogCopies(Protocol):
    """Copies of the catalog."""

    async def snapshot(self, ns: int, path: Path) -> int:
        """Copy one namespace as of one revision into a catalog file of its own at `path`; returns that revision.

        Writers go on meanwhile. The file is a catalog like any other (same schema) with this namespace alone.
        """

    async def backup(self, path: Path, *, progress: Callable[[int, int], None]) -> None:
        """Copy the whole catalog, online, as of one moment; `progress` gets pages (done, total)."""
