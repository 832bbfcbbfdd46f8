"""When and how often a broken stream is opened again."""

from __future__ import annotations

import random
from dataclasses import dataclass

import grpc
from clag.v1 import types_pb2

from clag_client.errors import ClagError

__all__ = ["RetryPolicy"]

_TRANSIENT = frozenset({grpc.StatusCode.UNAVAILABLE})
_NO_USE = frozenset({types_pb2.ERROR_REASON_STREAM_FENCED})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Bounded retries with growing, jittered pauses.

    Attributes:
        attempts: connections in a row that bring nothing forward before the error is raised.
        first_pause_s: seconds before the first retry, at most; each pause is a random part of its limit, so that
            many clients of one server do not come back at the same moment.
        longest_pause_s: limit of every pause but those that the server asks for.
    """

    attempts: int = 8
    first_pause_s: float = 0.1
    longest_pause_s: float = 5.0

    def pause_s(self, failures: int, error: ClagError) -> float | None:
        """Return how long to wait after a failure.

        Args:
            failures: failures in a row, this one included, from 1.
            error: the failure.

        Returns:
            Seconds, or None when the error is to be raised.
        """
        if failures >= self.attempts or error.reason in _NO_USE:
            return None
        if error.retry_after_s is not None:
            return error.retry_after_s * random.uniform(1.0, 1.2)  # noqa: S311  # jitter, not a secret
        if error.code not in _TRANSIENT:
            return None
        limit = min(self.longest_pause_s, self.first_pause_s * 2.0 ** (failures - 1))
        return random.uniform(limit / 2, limit)  # noqa: S311
