"""A bar on standard error for work that is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from clag_server.cli.output import console

__all__ = ["Drawn", "drawn_count"]

Drawn: TypeAlias = Callable[[int, int], None]
"""Draws what is done, and how much there is in all (0: not known)."""


@contextmanager
def drawn_count(what: str, *, quiet: bool) -> Iterator[Drawn]:
    """Draw a bar while the block runs; nothing where there is no terminal.

    Args:
        what: What is counted, e.g. "rows".
        quiet: Whether nothing is drawn anyway.
    """
    shown = console(stderr=True)
    if quiet or not shown.is_terminal:
        yield lambda _done, _total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(20), MofNCompleteColumn(), TextColumn(what, markup=False), TimeRemainingColumn())
    with Progress(*columns, console=shown, transient=True) as bars:
        task = bars.add_task("", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total or None)
