"""Counts what one model does, for metrics and `clag status`."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from clag_server.models.errors import (
    ModelError,
    ModelRequestRefusedError,
    ModelTimeoutError,
    ModelUnavailableError,
    UnusableOutputError,
)
from clag_server.models.status import EngineMetrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from clag_server.models.api import Usage

__all__ = ["Meter", "cause_of"]

_RECENT = 512
"""Calls over which waits and batch sizes are summed up."""

_MINUTE_S = 60


def cause_of(error: ModelError) -> str:
    """Return the name under which a failure is counted."""
    match error:
        case ModelUnavailableError():
            return "unavailable"
        case ModelTimeoutError():
            return "timeout"
        case ModelRequestRefusedError():
            return "refused"
        case UnusableOutputError():
            return f"unusable_{error.cause.value}"
    return "wrong_shape"


class Meter:
    """Counts of one model.

    Args:
        clock: Seconds; replaced by tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._calls = 0
        self._failures: Counter[str] = Counter()
        self._waits: deque[float] = deque(maxlen=_RECENT)
        self._batches: deque[float] = deque(maxlen=_RECENT)
        self._tokens_in = 0
        self._tokens_out = 0
        self._by_second: deque[tuple[int, int]] = deque()

    def answered(self, usage: Usage) -> None:
        """Count a call that was answered."""
        self._calls += 1
        self._waits.append(usage.queue_s)
        self._batches.append(usage.batch)
        self._tokens_in += usage.tokens_in
        self._tokens_out += usage.tokens_out
        second, tokens = int(self._clock()), usage.tokens_in + usage.tokens_out
        if self._by_second and self._by_second[-1][0] == second:
            tokens += self._by_second.pop()[1]
        self._by_second.append((second, tokens))
        self._forget_old(second)

    def failed(self, error: ModelError) -> None:
        """Count a call without a usable answer."""
        self._failures[cause_of(error)] += 1

    def snapshot(
        self, waiting: Mapping[str, int], *, prefix_hits: int = 0, prefix_misses: int = 0
    ) -> EngineMetrics:
        """Return the counts now.

        Args:
            waiting: Calls that wait for a batch, by priority.
            prefix_hits: From the workers.
            prefix_misses: From the workers.
        """
        self._forget_old(int(self._clock()))
        waits = sorted(self._waits)
        return EngineMetrics(
            calls=self._calls,
            failures=dict(self._failures),
            waiting=dict(waiting),
            wait_p50_s=_quantile(waits, 0.5),
            wait_p99_s=_quantile(waits, 0.99),
            batch_mean=sum(self._batches) / len(self._batches) if self._batches else 0.0,
            tokens_in=self._tokens_in,
            tokens_out=self._tokens_out,
            tokens_per_s=sum(tokens for _, tokens in self._by_second) / _MINUTE_S,
            prefix_hits=prefix_hits,
            prefix_misses=prefix_misses,
        )

    def _forget_old(self, second: int) -> None:
        while self._by_second and self._by_second[0][0] <= second - _MINUTE_S:
            self._by_second.popleft()


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0
