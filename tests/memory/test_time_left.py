"""Time that is left goes to what matters: what can be left out is not begun when it would make the rest late."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clag_server.memory.time_left import OutOfTime, Step, StepDurations, TimeLeft, spare_s
from tests.memory.clock import Clock


def known(**seconds: float) -> StepDurations:
    """Durations of which nothing varies."""
    durations = StepDurations()
    for name, value in seconds.items():
        for _ in range(200):
            durations.took(Step[name], value)
    return durations


def test_an_average_follows_what_steps_take_and_covers_what_varies() -> None:
    steady, varying = StepDurations(), StepDurations()
    for turn in range(100):
        steady.took(Step.NET, 1.0)
        varying.took(Step.NET, 0.5 if turn % 2 else 1.5)
    assert steady.expected_s(Step.NET) == pytest.approx(1.0, abs=1e-3)
    assert varying.expected_s(Step.NET) > 1.5


def test_without_a_deadline_everything_is_afforded() -> None:
    left = TimeLeft(None, known(SLM=1e6), clock=Clock())
    assert left.affords(Step.SLM)
    assert left.allowance_s(Step.SLM) is None


def test_the_language_model_goes_first_then_the_net_then_the_context() -> None:
    clock = Clock()
    durations = known(SLM=1.0, NET=0.1, RANK=0.1, CONTEXT=0.1)
    left = TimeLeft(2.0 + spare_s(2.0), durations, clock=clock)

    def afforded() -> list[Step]:
        return [step for step in (Step.SLM, Step.NET, Step.CONTEXT) if left.affords(step)]

    assert afforded() == [Step.SLM, Step.NET, Step.CONTEXT]
    clock.passes(1.0)
    assert afforded() == [Step.NET, Step.CONTEXT]
    clock.passes(0.75)
    assert afforded() == [Step.CONTEXT]
    clock.passes(0.2)
    assert afforded() == []


def test_time_for_a_context_is_kept_only_where_one_is_asked_for() -> None:
    clock = Clock()
    durations = known(NET=0.1, RANK=0.1, CONTEXT=10.0)
    assert TimeLeft(1.0, durations, context=False, clock=clock).affords(Step.NET)
    assert not TimeLeft(1.0, durations, context=True, clock=clock).affords(Step.NET)


async def test_a_step_that_hangs_is_cancelled_when_its_time_is_up() -> None:
    left = TimeLeft(0.06, known(NET=0.001, RANK=0.001, CONTEXT=0.001))
    cancelled = asyncio.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(OutOfTime, match="longer than"):
        await left.spend(Step.NET, hang)
    assert cancelled.is_set()


async def test_a_step_that_is_left_out_is_not_begun_and_is_tried_again_after_some_times() -> None:
    clock = Clock()
    durations = known(NET=1.0, RANK=0.01, CONTEXT=0.01)
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1

    tries = 0
    while not begun:
        tries += 1
        assert tries < 50
        with suppress(OutOfTime):
            await TimeLeft(0.5, durations, clock=clock).spend(Step.NET, work)
    assert tries > 3


async def test_what_the_step_itself_raises_is_not_taken_for_a_lack_of_time() -> None:
    async def fail() -> None:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        await TimeLeft(60.0, known(NET=0.01)).spend(Step.NET, fail)


async def test_a_caller_that_leaves_does_not_shorten_the_average() -> None:
    durations = known(NET=1.0)
    before = durations.expected_s(Step.NET)
    task = asyncio.create_task(TimeLeft(None, durations).spend(Step.NET, asyncio.Event().wait))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert durations.expected_s(Step.NET) == before


@given(
    st.floats(0, 10),
    st.floats(0, 10),
    st.fixed_dictionaries({name: st.floats(0, 3) for name in ("SLM", "NET", "RANK", "CONTEXT")}),
)
def test_an_allowance_never_takes_what_is_kept_for_the_rest(
    deadline_s: float, gone_s: float, seconds: dict[str, float]
) -> None:
    clock = Clock()
    durations = StepDurations()
    for name, value in seconds.items():
        durations.took(Step[name], value)
    left = TimeLeft(deadline_s, durations, clock=clock)
    clock.passes(gone_s)
    remaining_s = deadline_s - gone_s
    for step in (Step.SLM, Step.NET, Step.EMBED):
        allowed_s = left.allowance_s(step)
        assert allowed_s is not None
        if allowed_s > 0:
            assert allowed_s + durations.expected_s(Step.RANK) + spare_s(deadline_s) <= remaining_s + 1e-6
