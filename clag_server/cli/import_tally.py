"""What became of the rows of an import: in this run, and in earlier ones of the same import."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from clag.v1 import admin_service_pb2 as pb

from clag_server.cli.output import note
from clag_server.cli.terms import in_words
from clag_server.cli.transfer_files import FileRow, UnreadableFile

__all__ = ["ImportTally"]

_TOLD_ERRORS: Final = 20
_KEPT_ERRORS: Final = 1000


@dataclass(frozen=True, slots=True)
class _RowError:
    place: str
    """"line", or "item" where the whole document is one line."""
    number: int
    seq: int
    field: str
    message: str

    def as_json(self) -> dict[str, object]:
        return {self.place: self.number, "seq": self.seq, "field": self.field, "message": self.message}


@dataclass(slots=True)
class ImportTally:
    """Counts and errors of one run.

    Attributes:
        quiet: Whether errors are kept and not told.
        before: Rows that earlier runs brought to the server's disk, which this one passed over.
        durable: Rows that are on the server's disk, those before included.
        damage: Why the file could not be read to its end; None when it could.
    """

    quiet: bool
    before: int = 0
    durable: int = 0
    damage: UnreadableFile | None = None
    _opened: bool = False
    _place: str = "line"
    _shifts: list[int] = field(default_factory=list)
    _shifted: list[int] = field(default_factory=list)
    """Sequence numbers from which on rows are `_shifts` lines further down the file than their numbers say."""
    _bad: dict[int, str] = field(default_factory=dict)
    _errors: list[_RowError] = field(default_factory=list)
    _count: int = 0

    def records(self, rows: Iterable[FileRow]) -> Iterator[pb.ExportRecord]:
        """Give the records of rows, as far as the file can be read.

        Bad rows go as empty records, which the server rejects: so its counts and numbers include them.
        """
        try:
            for seq, row in enumerate(rows, start=1):
                self._read(seq, row)
                yield row.record
        except UnreadableFile as damage:
            self.damage = damage

    def hear(self, durable: int, rejections: list[pb.ImportRejection]) -> None:
        """Take the news of the client."""
        if not self._opened:
            self._opened, self.before = True, durable
        self.durable = durable
        for rejection in rejections:
            self._reject(rejection)

    def summary(self, finished: pb.ImportFinished, namespace: str, name: str) -> str:
        """Say what happened in this run, and what before. `name`: what the import is known by, in words."""
        here = self.durable - self.before
        beside = f"{finished.duplicates:,} were there, {finished.rejected:,} rejected"
        if not self.durable:
            return "no rows: nothing was sent"
        if not self.before:
            return f"{finished.imported:,} rows imported into {namespace}, {beside}"
        if here:
            return (
                f"{here:,} rows in this run, {self.before:,} before; in all {finished.imported:,} imported into "
                f"{namespace}, {beside}"
            )
        others = f" ({beside})" if finished.duplicates or finished.rejected else ""
        return (
            f"0 rows in this run; {finished.imported:,} were imported before under {name}{others}: use --again to "
            "load them once more"
        )

    def as_json(self, finished: pb.ImportFinished) -> dict[str, object]:
        """The same for programs; counts are of the whole import, earlier runs included."""
        return {
            "rows_in_run": self.durable - self.before,
            "rows_before": self.before,
            "imported": finished.imported,
            "duplicates": finished.duplicates,
            "rejected": finished.rejected,
            "damage": None if self.damage is None else self.damage.message,
            "errors": [error.as_json() for error in self._errors],
            "errors_left_out": self._count - len(self._errors),
        }

    def _read(self, seq: int, row: FileRow) -> None:
        number = row.item or row.line
        self._place = "item" if row.item else "line"
        if number - seq != (self._shifts[-1] if self._shifts else 0):
            self._shifts.append(number - seq)
            self._shifted.append(seq)
        if row.error:
            self._bad[seq] = row.error

    def _number(self, seq: int) -> int:
        """The line or item of a row."""
        at = bisect_right(self._shifted, seq)
        return seq + (self._shifts[at - 1] if at else 0)

    def _reject(self, rejection: pb.ImportRejection) -> None:
        """Keep a rejection, and tell it unless there were many."""
        bad = self._bad.pop(rejection.seq, "")
        path = "" if bad else rejection.error.field
        message = bad or in_words(rejection.error.message)
        error = _RowError(self._place, self._number(rejection.seq), rejection.seq, path, message)
        self._count += 1
        if len(self._errors) < _KEPT_ERRORS:
            self._errors.append(error)
        if not self.quiet and self._count <= _TOLD_ERRORS:
            note(f"{error.place} {error.number}: {f'{path}: ' if path else ''}{message}")
        if not self.quiet and self._count == _TOLD_ERRORS:
            note("more such rows are counted only (the first 1,000 are in the output of --json)")
