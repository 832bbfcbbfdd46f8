"""When to try again and when to stop asking: back-off with full jitter, and a circuit breaker.

The waits follow the "full jitter" scheme (Marc Brooker, AWS Architecture Blog, 2015): uniform between nothing and a
bound that doubles, so that callers that failed together do not come back together.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Backoff", "CircuitBreaker"]

_uniform = random.SystemRandom().uniform


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits between tries.

    Attributes:
        base_s: Upper bound of the first wait in seconds.
        cap_s: Upper bound of any wait.
        uniform: Draws between two bounds; tests give their own.
    """

    base_s: float
    cap_s: float
    uniform: Callable[[float, float], float] = _uniform

    def wait_s(self, failures: int, at_least_s: float | None = None) -> float:
        """Return the wait after so many failures.

        Args:
            failures: At least 1.
            at_least_s: What the server asked for; the jitter then comes on top of it.
        """
        # The exponent is bounded: 2.0 ** 1024 would be an overflow error after a long outage.
        bound_s = min(self.base_s * 2.0 ** min(failures - 1, 32), self.cap_s)
        return (at_least_s or 0.0) + self.uniform(0.0, bound_s)


class CircuitBreaker:
    """Counts consecutive failures; open, it lets nothing pass until somebody probes and closes it.

    Args:
        threshold: Consecutive failures that open it.
    """

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold
        self._failures = 0
        self._reason = ""

    @property
    def is_open(self) -> bool:
        """Whether requests must not be sent."""
        return self._failures >= self._threshold

    @property
    def reason(self) -> str:
        """The last failure."""
        return self._reason

    def succeeded(self) -> None:
        """Hear of an answer: close."""
        self._failures = 0
        self._reason = ""

    def failed(self, reason: str) -> bool:
        """Hear of a failure; returns True when this one opens the breaker."""
        was_open = self.is_open
        self._failures += 1
        self._reason = reason
        return self.is_open and not was_open
