"""How much of a question's deadline is left, and what may still be done in it: an answer degrades, it is not late.

What an answer cannot do without (choosing episodes, ranking) keeps its time; what makes it better is left out, the
dearest first: the language model's vote, then the safety net, then the context. How long each step takes is known
from running averages with their deviations, as TCP estimates its round trips (RFC 6298), and what is known grows
old: a step that a busy hour made slow is tried again soon after.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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

_HALF_LIFE_S: Final = 2.0
_MOST_HALF_LIFE_S: Final = 10.0
_HALF_LIFE_STEPS: Final = 10.0
"""An estimate counts half as much after so many times what the step took, within these bounds in seconds: trying a
step in vain costs its time, so a slow one is tried less often."""

_OLD: Final = 2.0
"""After so many half-lives without a measurement a step is tried whatever its estimate, by one question, and what
it takes then is all that is known of it."""

_MOST_BACK_OFF: Final = 4.0
"""A step that is cut off again and again is taken to last twice as long each time (RFC 6298, 5.5), up to this."""


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


@dataclass(frozen=True, slots=True)
class _Known:
    """What was learned of a step, in seconds, and when on the clock; `at_s` is that of the newest measurement."""

    mean_s: float
    deviation_s: float
    at_s: float

    @property
    def estimate_s(self) -> float:
        return self.mean_s + _DEVIATIONS * self.deviation_s

    @property
    def half_life_s(self) -> float:
        return min(max(_HALF_LIFE_S, _HALF_LIFE_STEPS * self.mean_s), _MOST_HALF_LIFE_S)

    def weight(self, now_s: float) -> float:
        """How much it still counts, from 1 for new to 0 for old."""
        lives = (now_s - self.at_s) / self.half_life_s
        return 0.0 if lives > _OLD else float(0.5**lives)


class StepDurations:
    """Running averages of what the steps of one namespace's questions take.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[Step, _Known] = {}
        self._begun_s: dict[Step, float] = {}
        self._back_off: dict[Step, float] = {}

    def begun(self, step: Step) -> None:
        """Hear that a step begins: while one question tries an old estimate, others do not."""
        self._begun_s[step] = self._clock()

    def took(self, step: Step, seconds: float) -> None:
        """Learn how long a step took."""
        self._back_off.pop(step, None)
        self._learn(step, seconds)

    def cut_off(self, step: Step, seconds: float) -> None:
        """Learn that a step was not done in this time; how much longer it would have taken, nobody knows."""
        times = self._back_off.get(step, 1.0)
        self._back_off[step] = min(2 * times, _MOST_BACK_OFF)
        old = self._known.get(step)
        least_s = 0.0 if old is None else old.weight(self._clock()) * old.mean_s
        self._learn(step, max(times * seconds, least_s))

    def left_out(self, step: Step) -> None:
        """Hear that a step was left out for its estimate."""
        old = self._known.get(step) or _Known(_FIRST_GUESS_S[step], 0.0, self._clock())
        self._known[step] = _Known(_FADE * old.mean_s, _FADE * old.deviation_s, old.at_s)

    def expected_s(self, step: Step) -> float:
        """How long a step will take, seldom longer, in seconds: what is kept for it, however old the estimate."""
        known = self._known.get(step)
        return _FIRST_GUESS_S[step] if known is None else known.estimate_s

    def hoped_s(self, step: Step) -> float:
        """How long a step will take by now, in seconds: an old estimate from a slow time counts less."""
        guess_s, known = _FIRST_GUESS_S[step], self._known.get(step)
        if known is None or known.estimate_s <= guess_s:
            return self.expected_s(step)
        return guess_s + known.weight(self._clock()) * (known.estimate_s - guess_s)

    def worth_trying(self, step: Step, within_s: float) -> bool:
        """Whether to begin a step that has so many seconds: it will be done in them, or it is time to see."""
        if within_s <= 0:
            return False
        return within_s >= self.hoped_s(step) or self._untried(step)

    def _learn(self, step: Step, seconds: float) -> None:
        now_s = self._clock()
        old = self._known.get(step)
        weight = 0.0 if old is None else old.weight(now_s)
        if old is None or not weight:
            self._known[step] = _Known(seconds, seconds / 2, now_s)
            return
        kept, kept_deviation = (1 - _NEW) * weight, (1 - _NEW_DEVIATION) * weight
        self._known[step] = _Known(
            kept * old.mean_s + (1 - kept) * seconds,
            kept_deviation * old.deviation_s + (1 - kept_deviation) * abs(seconds - old.mean_s),
            now_s,
        )

    def _untried(self, step: Step) -> bool:
        """Whether the step was neither done nor begun since its estimate has become old."""
        known = self._known.get(step)
        if known is None:
            return False
        last_s = max(known.at_s, self._begun_s.get(step, known.at_s))
        return self._clock() - last_s > _OLD * known.half_life_s


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
        return allowed is None or self._durations.worth_trying(step, allowed)

    async def spend(self, step: Step, work: Callable[[], Awaitable[T]]) -> T:
        """Do a step that can be left out, within its time.

        Raises:
            OutOfTime: There is no time for it, or it took longer and was cancelled.
        """
        allowed = self.allowance_s(step)
        if not self.affords(step):
            expected_s = self._durations.hoped_s(step)
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
        self._durations.begun(step)
        try:
            yield
        except OutOfTime:
            self._durations.cut_off(step, self._clock() - started)
            raise
        self._durations.took(step, self._clock() - started)

    def _wanted(self, step: Step) -> bool:
        return self._context or step is not Step.CONTEXT
