"""A file of results that a long benchmark fills run by run, so that it goes on where it was interrupted."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeAlias

Result: TypeAlias = Mapping[str, float | int | str]


class Report:
    """Results by the name of the run.

    Args:
        path: JSON file that is read first and written after each run; None keeps results in memory only.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._runs: dict[str, Result] = {}
        if path is not None and path.exists():
            self._runs = json.loads(path.read_text("utf-8"))["runs"]

    def __contains__(self, name: str) -> bool:
        return name in self._runs

    def __getitem__(self, name: str) -> Result:
        return self._runs[name]

    def add(self, name: str, result: Result) -> None:
        """Keep a result; the file is whole at any moment."""
        self._runs[name] = result
        if self._path is not None:
            partial = self._path.with_suffix(".partial")
            partial.write_text(json.dumps({"runs": self._runs}, indent=2, sort_keys=True) + "\n", "utf-8")
            partial.replace(self._path)

    async def run(self, name: str, measure: Callable[[], Awaitable[Result]]) -> Result:
        """Return what the file has of a run, else measure it and keep it."""
        if name in self:
            print(f"{name}: taken from the report", flush=True)
        else:
            print(f"{name} ...", flush=True)
            self.add(name, await measure())
        return self[name]


def table(rows: Mapping[str, Result], columns: Mapping[str, str]) -> str:
    """Lines of a table: a row for each run, and a column for each field that one of them has.

    Args:
        rows: Results by the name that the row begins with.
        columns: Heading by field.
    """
    there = [field for field in columns if any(field in row for row in rows.values())]
    cells = [["", *(columns[field] for field in there)]]
    cells += [[name, *(_shown(row.get(field, "")) for field in there)] for name, row in rows.items()]
    widths = [max(len(line[column]) for line in cells) for column in range(len(there) + 1)]
    return "\n".join(
        "  ".join(cell.ljust(width) if column == 0 else cell.rjust(width)
                  for column, (cell, width) in enumerate(zip(line, widths, strict=True)))
        for line in cells
    )  # fmt: skip


def _shown(value: float | str) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
