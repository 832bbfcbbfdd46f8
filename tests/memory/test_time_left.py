"""Time that is left goes to what matters: what can be left out is not begun when it would make the rest late."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clag_server.memory.time_left import OutOfTime, Step, StepDurations, TimeLeft, spare_s
from tests.memory.clock import Clock


def known(clock: Clock | None = None, **seconds: float) -> StepDurations:
    """Durations of which nothing varies, learned in a moment."""
    durations = StepDurations(clock=clock or Clock())
    for name, value in seconds.items():
        for _ in range(200):
            durations.took(Step[name], value)
    return durations


def test_an_average_follows_what_steps_take_and_covers_what_varies() -> None:
    clock = Clock()
    steady, varying = StepDurations(clock=clock), StepDurations(clock=clock)
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


async def net_is_asked(clock: Clock, durations: StepDurations, *, takes_s: float, deadline_s: float = 0.05) -> bool:
    """Ask a question with a deadline, whose net takes so long; tell whether the net was begun."""
    left = TimeLeft(deadline_s, durations, context=False, clock=clock)
    begun = False

    async def work() -> None:
        nonlocal begun
        begun = True
        clock.passes(takes_s)

    with suppress(OutOfTime):
        await left.spend(Step.NET, work)
    with left.timed(Step.RANK):
        clock.passes(0.002)
    return begun


@pytest.mark.parametrize("every_s", [0.5, 5.0, 60.0])
async def test_after_a_load_the_net_is_soon_asked_again_however_often_questions_come(every_s: float) -> None:
    clock = Clock()
    durations = known(clock, NET=0.3, RANK=0.1)
    assert not await net_is_asked(clock, durations, takes_s=0.005)
    started_s, questions = clock.now_s, 0
    while not await net_is_asked(clock, durations, takes_s=0.005):
        questions += 1
        assert questions <= 2 or clock.now_s - started_s < 15.0
        clock.passes(every_s)
    for _ in range(10):  # what else was slow is measured meanwhile
        clock.passes(every_s)
        await net_is_asked(clock, durations, takes_s=0.005)
    for _ in range(20):
        clock.passes(every_s)
        assert await net_is_asked(clock, durations, takes_s=0.005)


async def test_a_measurement_after_a_long_time_is_all_that_counts() -> None:
    clock = Clock()
    durations = known(clock, NET=0.3)
    clock.passes(60.0)
    assert durations.expected_s(Step.NET) == pytest.approx(0.3, rel=0.01)
    durations.took(Step.NET, 0.004)
    assert durations.expected_s(Step.NET) == pytest.approx(0.008)


async def test_one_question_at_a_time_tries_a_step_whose_estimate_is_old() -> None:
    clock = Clock()
    durations = known(clock, NET=0.3, RANK=0.001)
    clock.passes(60.0)
    durations.took(Step.RANK, 0.001)
    one, other = (TimeLeft(0.03, durations, context=False, clock=clock) for _ in range(2))
    assert not durations.hoped_s(Step.NET) <= (one.allowance_s(Step.NET) or 0.0)
    ended = asyncio.Event()
    trying = asyncio.create_task(one.spend(Step.NET, ended.wait))
    await asyncio.sleep(0)
    with pytest.raises(OutOfTime, match="were left for it"):
        await other.spend(Step.NET, ended.wait)
    ended.set()
    assert await trying


async def test_a_step_that_is_still_slow_is_tried_seldom() -> None:
    clock = Clock()
    durations = known(clock, SLM=3.0)
    tries = 0
    for _ in range(120):
        clock.passes(5.0)
        if durations.worth_trying(Step.SLM, 2.0):
            tries += 1
            durations.begun(Step.SLM)
            clock.passes(2.0)
            durations.cut_off(Step.SLM, 2.0)
        else:
            durations.left_out(Step.SLM)
    assert 5 <= tries <= 40  # of 120 questions within ten minutes


def test_a_step_that_was_cut_off_is_not_thought_to_be_faster_than_before() -> None:
    clock = Clock()
    durations = known(clock, NET=1.0)
    for _ in range(10):
        durations.cut_off(Step.NET, 0.01)
    assert durations.expected_s(Step.NET) >= 1.0 - 1e-9
    for _ in range(50):
        durations.cut_off(Step.NET, 2.0)
    assert durations.expected_s(Step.NET) >= 2.0 - 1e-2


def test_what_is_kept_for_later_steps_does_not_shrink_while_nobody_asks() -> None:
    clock = Clock()
    durations = known(clock, RANK=0.2)
    before_s = TimeLeft(1.0, durations, context=False, clock=clock).allowance_s(Step.NET)
    clock.passes(3600.0)
    assert TimeLeft(1.0, durations, context=False, clock=clock).allowance_s(Step.NET) == pytest.approx(before_s)


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
    durations = StepDurations(clock=clock)
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
