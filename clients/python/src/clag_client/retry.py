"""When, and for how long, a broken stream is opened again."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import grpc
from clag.v1 import types_pb2

from clag_client.errors import ClagError

__all__ = ["Outage", "RetryPolicy"]

_TRANSIENT = frozenset({grpc.StatusCode.UNAVAILABLE})
_NO_USE = frozenset({types_pb2.ERROR_REASON_STREAM_FENCED})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retries with growing, jittered pauses, within a budget of time.

    The bound is a time and not a number of attempts: a server that restarts loads its models and checks its index,
    6 to 16 s on two cores, and how many attempts fit in there depends on the pauses.

    Attributes:
        reconnect_budget_s: seconds to look for a server that went away before the error is raised.
        first_pause_s: seconds before the first retry, at most; each pause is a random part of its limit, so that
            many clients of one server do not come back at the same moment.
        longest_pause_s: limit of every pause but those that the server asks for.
    """

    reconnect_budget_s: float = 120.0
    first_pause_s: float = 0.1
    longest_pause_s: float = 5.0

    def pause_s(self, failures: int, away_s: float, error: ClagError) -> float | None:
        """Return how long to wait after a failure.

        Args:
            failures: failures in a row, this one included, from 1.
            away_s: seconds since the first of them.
            error: the failure.

        Returns:
            Seconds, or None when the error is to be raised.
        """
        if error.reason in _NO_USE:
            return None
        if error.retry_after_s is not None:
            pause = error.retry_after_s * random.uniform(1.0, 1.2)  # noqa: S311  # jitter, not a secret
        elif error.code in _TRANSIENT:
            # The exponent is bounded because long outages have thousands of failures, and floats an end.
            limit = min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(failures - 1, 32))
            pause = random.uniform(limit / 2, limit)  # noqa: S311
        else:
            return None
        return pause if away_s + pause <= self.reconnect_budget_s else None


class Outage:
    """Failures in a row of one stream, and the waiting between them.

    Args:
        policy: how long to go on.
        clock: monotonic seconds.
        sleep: waits for some seconds.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._sleep = sleep
        self._failures = 0
        self._since_s = 0.0
        self._connected_s: float | None = None

    def connected(self) -> None:
        """Hear that a connection stands."""
        self._connected_s = self._clock()

    async def wait(self, error: ClagError, *, forward: bool) -> None:
        """Wait until the next attempt.

        Args:
            error: what ended the connection, or the attempt at one.
            forward: whether that connection brought the stream forward. One that did, or that stood for longer
                than the longest pause (a stream may have nothing to do for hours), ends the outage before it.

        Raises:
            ClagError: the error, when trying again is of no use or the budget is used up.
        """
        now_s = self._clock()
        stood_s = 0.0 if self._connected_s is None else now_s - self._connected_s
        self._connected_s = None
        if forward or stood_s > self._policy.longest_pause_s or not self._failures:
            self._failures, self._since_s = 0, now_s
        self._failures += 1
        pause = self._policy.pause_s(self._failures, now_s - self._since_s, error)
        if pause is None:
            raise error
        await self._sleep(pause)
