"""How far a run is, on standard error: a bar on a terminal, a line for each step elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from clag_eval.running import Progress

__all__ = ["shown_progress"]


@contextmanager
def shown_progress() -> Iterator[Progress]:
    """Show progress while the block runs."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    doing = TextColumn("{task.description}", markup=False)
    columns = (BarColumn(24), MofNCompleteColumn(), doing, TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def moved(doing: str, done: int, total: int) -> None:
            bar.update(task, description=doing, completed=done, total=total)

        yield moved


def _lines() -> Progress:
    last = ""

    def moved(doing: str, done: int, total: int) -> None:
        nonlocal last
        if doing != last:
            last = doing
            sys.stderr.write(f"{done:,} of {total:,}  {doing}\n")
            sys.stderr.flush()

    return moved
