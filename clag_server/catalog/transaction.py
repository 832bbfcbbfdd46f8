"""What one write of a group sees: the connection, and the numbers that the catalog gives out.

Numbers (revisions, keys, placements, outbox steps) come from one row that is read when a group begins and written
when it commits. What a failed write took is given back with its rows, before anybody saw it; beyond that, a number
is never given out twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from clag_server.catalog.schema import ChangeKind, changes

_DIALECT = sqlite.dialect()


def compile_insert(table: sa.Table) -> str:
    """Return the INSERT of all columns in order, for `executemany` of plain tuples.

    Core's own processing of parameters cost more than SQLite's insert of a row.
    """
    return str(table.insert().compile(dialect=_DIALECT, column_keys=[column.name for column in table.c]))


_INSERT_CHANGE = compile_insert(changes)
_READ_COUNTERS = "SELECT revision, key, placement, outbox, owner_epoch, owner FROM counters"
_SAVE_COUNTERS = "UPDATE counters SET revision = ?, key = ?, placement = ?, outbox = ? WHERE id = 1"


ChangeRow: TypeAlias = tuple[int, int, ChangeKind, int, str | None, int, int | None, int | None]
"""(revision, ns, kind, key, memory id of a deleted one, time, cluster, old cluster): columns of `changes`."""

MemoryChange: TypeAlias = tuple[int, ChangeKind, int | None, int | None]
"""(key, kind, cluster, old cluster)."""


@dataclass(slots=True)
class Numbers:
    """The last number given out of each kind."""

    revision: int
    key: int
    placement: int
    outbox: int


class WriteTx:
    """A write transaction. Only the writer's thread touches it.

    `owner_epoch` and `owner` are those that the catalog had when it began (see `ownership`).
    """

    def __init__(self, connection: sa.Connection) -> None:
        self.connection = connection
        row = connection.exec_driver_sql(_READ_COUNTERS).one()
        revision, key, placement, outbox, self.owner_epoch, self.owner = row
        self.numbers = Numbers(revision, key, placement, outbox)
        self._before = Numbers(revision, key, placement, outbox)

    @property
    def revision(self) -> int:
        """The newest revision given out."""
        return self.numbers.revision

    def next_revision(self) -> int:
        """Give out a revision."""
        self.numbers.revision += 1
        return self.numbers.revision

    def next_placement(self) -> int:
        """Give out a placement id."""
        self.numbers.placement += 1
        return self.numbers.placement

    def next_key(self) -> int:
        """Give out a memory's key."""
        self.numbers.key += 1
        return self.numbers.key

    def next_outbox(self) -> int:
        """Give out a place in the outbox."""
        self.numbers.outbox += 1
        return self.numbers.outbox

    def executemany(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run a statement with question marks once for each row; nothing for no rows."""
        if rows:
            self.connection.exec_driver_sql(sql, list(rows))

    def log_changes(self, rows: Sequence[ChangeRow]) -> None:
        """Append to the change log."""
        self.executemany(_INSERT_CHANGE, rows)

    def log_change(
        self,
        ns: int,
        kind: ChangeKind,
        key: int,
        *,
        time_ns: int,
        memory_id: str | None = None,
        cluster: int | None = None,
    ) -> int:
        """Give out a revision and log one change under it."""
        revision = self.next_revision()
        self.log_changes([(revision, ns, kind, key, memory_id, time_ns, cluster, None)])
        return revision

    def log_memories(self, ns: int, changed: Iterable[MemoryChange], *, time_ns: int) -> dict[int, int]:
        """Log one change for each memory and return the revision of each key."""
        rows: list[ChangeRow] = [
            (self.next_revision(), ns, kind, key, None, time_ns, cluster, old_cluster)
            for key, kind, cluster, old_cluster in changed
        ]
        self.log_changes(rows)
        return {row[3]: row[0] for row in rows}

    def mark(self) -> Numbers:
        """Return the numbers as they are, for `give_back`."""
        return replace(self.numbers)

    def give_back(self, mark: Numbers) -> None:
        """Take back what was given out since the mark: the write that took it was rolled back."""
        self.numbers = mark

    def save_numbers(self) -> None:
        """Write the numbers back; the last statement before COMMIT."""
        if self.numbers != self._before:
            numbers = self.numbers
            self.connection.exec_driver_sql(
                _SAVE_COUNTERS, (numbers.revision, numbers.key, numbers.placement, numbers.outbox)
            )
