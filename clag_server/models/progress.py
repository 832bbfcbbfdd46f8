"""How long work on models reports where it is, without knowing who draws it."""

from __future__ import annotations

import enum
from typing import Protocol

__all__ = ["ProgressCallback", "Stage", "silent"]


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
