"""Embeddings and scorings that the worker has begun or will begin: one forward pass at a time, urgent ones first.

A task is a generator that yields between forward passes. A more urgent task that arrives runs between two passes of
the others, so it waits for one pass however large their batches are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass

__all__ = ["Task", "Tasks"]


@dataclass(eq=False, slots=True)
class Task:
    """One request that is answered pass by pass; the generator sends the answer."""

    id: int
    priority: int
    passes: Generator[None, None, None]


class Tasks:
    """Interactive tasks, then all others; each in order of arrival.

    The server's queue has weighed organizing against bulk work already, and lets few batches in at a time.
    """

    def __init__(self) -> None:
        self._urgent: deque[Task] = deque()
        self._others: deque[Task] = deque()

    def __bool__(self) -> bool:
        return bool(self._urgent or self._others)

    @property
    def interactive(self) -> bool:
        """Whether somebody waits for one of them."""
        return bool(self._urgent)

    def put(self, task: Task) -> None:
        """Add a task."""
        self._line(task).append(task)

    def next(self) -> Task | None:
        """Return the task whose pass is next."""
        line = self._urgent or self._others
        return line[0] if line else None

    def drop(self, task: Task) -> None:
        """Take a task out that is answered or failed."""
        task.passes.close()
        self._line(task).remove(task)

    def _line(self, task: Task) -> deque[Task]:
        return self._urgent if task.priority == 0 else self._others
