"""How long work on models reports where it is, without knowing who draws it."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol, Self

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["ProgressCallback", "RichProgress", "Stage", "silent"]


class Stage(enum.Enum):
    """A step of getting a model."""

    FETCH = "fetching"
    VERIFY = "verifying"
    CONVERT = "converting"
    READY = "ready"


class ProgressCallback(Protocol):
    """Called with a model's name, the stage, and done of total; a total of 0 means unknown."""

    def __call__(self, model: str, stage: Stage, done: int, total: int) -> None:
        """Report; called from any thread."""


def silent(model: str, stage: Stage, done: int, total: int) -> None:
    """Report to nobody."""


class RichProgress:
    """A progress bar a model and stage on the terminal; use as a context manager and pass as the callback."""

    def __init__(self) -> None:
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
        )
        self._tasks: dict[tuple[str, Stage], int] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def __call__(self, model: str, stage: Stage, done: int, total: int) -> None:
        """Draw one report."""
        if stage is Stage.READY:
            return
        known = self._tasks.get((model, stage))
        if known is None:
            known = self._bars.add_task(f"{model}: {stage.value}", total=total or None)
            self._tasks[model, stage] = known
        self._bars.update(known, completed=done, total=total or None)  # type: ignore[arg-type]
