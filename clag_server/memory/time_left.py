"""How much of a question's deadline is left, and what may still be done in it: an answer degrades, it is not late.

What an answer cannot do without (choosing episodes, ranking) keeps its time; what makes it better is left out, the
dearest first: the language model's vote, then the safety net, then the context. How long each step takes is known
from running averages with their deviations, as TCP estimates its round trips (RFC 6298).
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

__all__ = ["OutOfTime", "Step", "StepDurations", "TimeLeft", "spare_s"]

T = TypeVar("T")

SPARE_S: Final = 0.02
_SPARE_SHARE: Final = 0.1
_MOST_SPARE_S: Final = 0.5
"""Kept for what is no step: looking up words, scoring episodes, making frames and carrying them to the caller.
20 ms, and a tenth of the deadline, at most half a second: a machine that is busy with other work takes several
times as long for everything."""

_NEW: Final = 0.125
_NEW_DEVIATION: Final = 0.25
_DEVIATIONS: Final = 2.0
"""Weights of a new sample in the average and in the deviation (RFC 6298), and how many deviations are added. There
it is four, since a lost round trip is dear; a step that takes longer than thought is cut off, so two do."""

_FADE: Final = 0.9
"""An estimate that a step was left out for counts so much less the next time, or it would never be tried again."""


_EMBED_SHARE: Final = 0.6
"""Of the time that is left, as much is waited for an embedding: words can answer without it, in the rest."""


class Step(enum.Enum):
    """A part of the way of a question that takes time."""

    EMBED = "embedding the question"
    SLM = "asking the language model"
    NET = "the safety net"
    RANK = "ranking"
    CONTEXT = "assembling the context"


_FIRST_GUESS_S: Final = {Step.EMBED: 0.05, Step.SLM: 0.5, Step.NET: 0.01, Step.RANK: 0.01, Step.CONTEXT: 0.005}
"""Before anything was measured: what each took on a two-core machine with the bundled models, in seconds."""

_KEPT_FOR: Final = {
    Step.EMBED: (Step.RANK, Step.CONTEXT),
    Step.SLM: (Step.NET, Step.RANK, Step.CONTEXT),
    Step.NET: (Step.RANK, Step.CONTEXT),
    Step.RANK: (),
    Step.CONTEXT: (),
}
"""Steps that come later and matter more: their time is not given to the step."""


def spare_s(deadline_s: float) -> float:
    """Return how much of a deadline is kept for what is no step, in seconds."""
    return SPARE_S + min(_SPARE_SHARE * max(deadline_s, 0.0), _MOST_SPARE_S)


class OutOfTime(Exception):
    """A step was left out, or given up, because what matters more needs the time; the text is a sentence."""


class StepDurations:
    """Running averages of what the steps of one namespace's questions take."""

    def __init__(self) -> None:
        self._known: dict[Step, tuple[float, float]] = {}

    def took(self, step: Step, seconds: float) -> None:
        """Learn how long a step took."""
        if step not in self._known:
            self._known[step] = (seconds, seconds / 2)
            return
        mean, deviation = self._known[step]
        self._known[step] = (
            (1 - _NEW) * mean + _NEW * seconds,
            (1 - _NEW_DEVIATION) * deviation + _NEW_DEVIATION * abs(seconds - mean),
        )

    def left_out(self, step: Step) -> None:
        """Hear that a step was left out for its estimate."""
        mean, deviation = self._known.get(step, (_FIRST_GUESS_S[step], 0.0))
        self._known[step] = (_FADE * mean, _FADE * deviation)

    def expected_s(self, step: Step) -> float:
        """How long a step will take, seldom longer, in seconds."""
        mean, deviation = self._known.get(step, (_FIRST_GUESS_S[step], 0.0))
        return mean + _DEVIATIONS * deviation


class TimeLeft:
    """The time of one question, from now on.

    Args:
        deadline_s: Seconds until the caller gives up; None waits as long as it takes.
        durations: What is known of the namespace's steps.
        context: Whether a context is asked for, which then keeps its time.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        deadline_s: float | None,
        durations: StepDurations,
        *,
        context: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._until_s = None if deadline_s is None else clock() + deadline_s - spare_s(deadline_s)
        self._durations = durations
        self._context = context
        self._clock = clock

    def allowance_s(self, step: Step) -> float | None:
        """How long a step may take, in seconds, 0 for not at all; None without a deadline."""
        if self._until_s is None:
            return None
        kept = sum(self._durations.expected_s(one) for one in _KEPT_FOR[step] if self._wanted(one))
        left = max(0.0, self._until_s - self._clock() - kept)
        return _EMBED_SHARE * left if step is Step.EMBED else left

    def affords(self, step: Step) -> bool:
        """Whether a step will be done in the time it may take."""
        allowed = self.allowance_s(step)
        return allowed is None or (allowed > 0 and allowed >= self._durations.expected_s(step))

    async def spend(self, step: Step, work: Callable[[], Awaitable[T]]) -> T:
        """Do a step that can be left out, within its time.

        Raises:
            OutOfTime: There is no time for it, or it took longer and was cancelled.
        """
        allowed = self.allowance_s(step)
        if not self.affords(step):
            expected_s = self._durations.expected_s(step)
            self._durations.left_out(step)
            raise OutOfTime(f"{step.value} takes {expected_s:.3g} s and {allowed or 0.0:.3g} s were left for it")
        with self.timed(step):
            try:
                async with asyncio.timeout(allowed) as limit:
                    return await work()
            except TimeoutError:
                if limit.expired():
                    raise OutOfTime(
                        f"{step.value} took longer than the {allowed or 0.0:.3g} s left for it"
                    ) from None
                raise

    @contextmanager
    def timed(self, step: Step) -> Iterator[None]:
        """Measure a step that is done whatever it takes; one that fails or whose caller leaves tells nothing."""
        started = self._clock()
        try:
            yield
        except OutOfTime:
            self._durations.took(step, self._clock() - started)
            raise
        self._durations.took(step, self._clock() - started)

    def _wanted(self, step: Step) -> bool:
        return self._context or step is not Step.CONTEXT
