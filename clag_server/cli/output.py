"""What commands print: tables and lines for people, JSON for programs, errors on standard error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from clag_server.cli.safe import is_unsafe, visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["console", "error_line", "facts", "note", "print_document", "print_lines", "table"]

_PIPE_COLUMNS = 160
"""Width of tables where there is no terminal: wide enough that ids and titles are not folded."""


def console(*, stderr: bool = False) -> Console:
    """Make a console that never parses markup, emoji codes or numbers in what it prints."""
    from rich.console import Console  # rich takes 0.1 s to import, which `clag --help` need not pay

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS") else _PIPE_COLUMNS
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False, width=width, soft_wrap=False)


def table(*headers: str, title: str | None = None) -> Table:
    """Make an empty table; headers that end in `#` are right-aligned numbers."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for header in headers:
        made.add_column(header.removesuffix("#"), justify="right" if header.endswith("#") else "left")
    return made


def facts(values: Mapping[str, str]) -> Table:
    """Make a list of names and values; the values must be safe already. Empty ones are left out."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in values.items():
        if value:
            made.add_row(name, value)
    return made


def print_document(value: Mapping[str, object]) -> None:
    """Print one JSON document."""
    sys.stdout.write(_json(value, indent=2) + "\n")


def print_lines(values: Iterable[Mapping[str, object]]) -> None:
    """Print JSON Lines: one object a line, written as they come."""
    for value in values:
        sys.stdout.write(_json(value, indent=None) + "\n")


def error_line(message: str) -> None:
    """Say what is wrong, on one line of standard error; where that cannot be written, the exit code still tells."""
    with suppress(OSError):
        sys.stderr.write(f"clag: {visible(message)}\n")
        sys.stderr.flush()


def note(message: str) -> None:
    """Say something that is not the answer, on one line of standard error."""
    sys.stderr.write(f"{visible(message)}\n")


def _json(value: Mapping[str, object], *, indent: int | None) -> str:
    """Write JSON in which scripts stay readable and a terminal finds nothing to act on."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False)
    if text.isascii() and "\x7f" not in text:
        return text  # json has escaped the controls below 0x20
    return "".join(c if c == "\n" or not is_unsafe(c) else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    """Escape a character inside a JSON string (json leaves DEL as it is)."""
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]
