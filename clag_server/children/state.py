"""What is known about a supervised child: its states, its errors, and when it is started again."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass

__all__ = ["ChildFailedError", "ChildNotReadyError", "ChildState", "ChildStatus", "RestartPolicy"]


class ChildState(enum.Enum):
    """Where a supervised child stands."""

    STOPPED = "stopped"
    """Not started, or stopped on request."""
    STARTING = "starting"
    """The process runs and has not yet said that it is ready."""
    READY = "ready"
    """The process said that it is ready and the server's own check passed."""
    BACKOFF = "backoff"
    """The process ended or was not usable; it is started again after a delay."""
    FAILED = "failed"
    """Given up: the child called the fault permanent, or it failed too often in a row."""


@dataclass(frozen=True, slots=True)
class ChildStatus:
    """One child's state, with what a health report or an error message needs."""

    name: str
    state: ChildState
    reason: str = ""
    """Why the child is not ready, or what it does while it starts: one sentence, empty when READY."""
    pid: int | None = None
    restarts: int = 0
    """How often the process was started again since `start()`."""
    retry_after_s: float = 0.0
    """In BACKOFF: the delay before the next start, in seconds."""


class ChildFailedError(Exception):
    """The child will not become ready without someone's help; `status` says why."""

    def __init__(self, status: ChildStatus) -> None:
        super().__init__(f"{status.name} is {status.state.value}: {status.reason}")
        self.status = status


class ChildNotReadyError(Exception):
    """The child did not become ready within the caller's time; `status` says where it stands."""

    def __init__(self, status: ChildStatus, waited_s: float) -> None:
        detail = f": {status.reason}" if status.reason else ""
        super().__init__(f"{status.name} is {status.state.value} after {waited_s:g} s{detail}")
        self.status = status


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Exponential back-off with jitter between one end of a child and its next start."""

    first_delay_s: float = 0.25
    factor: float = 2.0
    max_delay_s: float = 30.0
    jitter: float = 0.2
    """Share of the delay that is drawn at random, both ways, so that children do not start in step."""
    healthy_after_s: float = 30.0
    """A child that was ready for this long starts again with the first delay."""
    max_failures: int | None = None
    """Failures in a row after which the child is FAILED; None keeps trying."""

    def delay_s(self, failures: int, rng: random.Random) -> float:
        """Return the delay before the next start.

        Args:
            failures: Failures in a row so far, at least 1.
            rng: Source of the jitter.
        """
        # The exponent is bounded first: 2.0 ** 2000 raises, and a child can fail that often in a day.
        steps = min(failures - 1, 64)
        plain = min(self.first_delay_s * self.factor**steps, self.max_delay_s)
        return plain * (1.0 + self.jitter * rng.uniform(-1.0, 1.0))
