"""A remote model server that fails in every way that servers do: callers get an answer or a typed error, soon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from clag_server.models.api import (
    EngineState,
    ModelRequestRefusedError,
    ModelTimeoutError,
    ModelUnavailableError,
    Priority,
    WrongShapeError,
)
from clag_server.models.remote_config import RemoteConfig
from tests.support.openai_double import (
    Abilities,
    Fault,
    OpenAiDouble,
    body,
    close,
    close_in_body,
    hang,
    slow_headers,
    status,
)
from tests.support.remote_slm import Remote, connected, until

NOW, BULK = Priority.INTERACTIVE, Priority.BULK


@pytest.fixture
async def double() -> AsyncIterator[OpenAiDouble]:
    async with OpenAiDouble().serving() as server:
        yield server


async def ask(
    remote: Remote, prompt: str = "Why?", *, priority: Priority = NOW, deadline_s: float | None = None
) -> str:
    answer = await remote.slm.generate(prompt, max_tokens=8, priority=priority, deadline_s=deadline_s)
    return answer.text


async def test_a_server_that_is_busy_is_asked_again_not_sooner_than_it_says(double: OpenAiDouble) -> None:
    async with connected(double) as remote:
        double.faults.append(status(429, retry_after="7"))
        assert await ask(remote) == "The sea is wide."
        assert len(remote.asked) == 2
        assert remote.waits.seconds == [8.0]  # the 7 s that it asked for, and 1 s of jitter on top
        assert remote.slm.status.state is EngineState.READY


async def test_a_wait_past_the_deadline_is_not_waited_and_the_caller_hears_when_to_come_back(
    double: OpenAiDouble,
) -> None:
    async with connected(double) as remote:
        double.faults.append(status(429, retry_after="300"))
        with pytest.raises(ModelUnavailableError) as told:
            await ask(remote, deadline_s=20.0)
        assert told.value.retry_after_s == 300.0
        assert remote.waits.seconds == []


@pytest.mark.parametrize(
    "fault",
    [status(500), status(503), close, close_in_body, body(b"<html>"), body(b'{"choices": []}'), body(b"[1]")],
)
async def test_a_passing_fault_of_the_server_costs_a_second_try_and_no_answer(
    double: OpenAiDouble, fault: Fault
) -> None:
    async with connected(double) as remote:
        double.faults.append(fault)
        assert await ask(remote) == "The sea is wide."
        assert len(remote.asked) == 2
        assert remote.waits.seconds == [1.0]


async def test_waits_between_tries_double_and_tries_are_bounded(double: OpenAiDouble) -> None:
    config = RemoteConfig("", "tiny", attempts=4, breaker_failures=100)
    async with connected(double, config) as remote:
        double.faults.extend([status(500, "the disk is full")] * 4)
        with pytest.raises(ModelUnavailableError, match="status 500: the disk is full"):
            await ask(remote)
        assert len(remote.asked) == 4
        assert remote.waits.seconds == [1.0, 2.0, 4.0]


async def test_answers_that_stay_garbled_are_a_wrong_shape_and_nothing_is_guessed(double: OpenAiDouble) -> None:
    async with connected(double, RemoteConfig("", "tiny", attempts=2, breaker_failures=100)) as remote:
        double.faults.extend([body(b"{"), body(b'{"choices": [{"message": {"content": 5}}]}')])
        with pytest.raises(WrongShapeError, match="no text"):
            await ask(remote)
        assert remote.slm.status.metrics.failures == {"wrong_shape": 1}


async def test_an_answer_without_end_is_cut_off(double: OpenAiDouble) -> None:
    async with connected(double, RemoteConfig("", "tiny", attempts=1, max_answer_bytes=1000)) as remote:
        double.faults.append(body(b" " * 5000))
        with pytest.raises(WrongShapeError, match="longer than 1000 bytes"):
            await ask(remote)


@pytest.mark.parametrize("fault", [hang, slow_headers])
async def test_a_server_that_hangs_costs_the_callers_deadline_and_no_more(
    double: OpenAiDouble, fault: Fault
) -> None:
    async with connected(double) as remote:
        double.faults.append(fault)
        with pytest.raises(ModelTimeoutError):
            await ask(remote, deadline_s=0.1)
        assert remote.link.gate.in_flight == 0
        assert await ask(remote) == "The sea is wide."


@pytest.mark.parametrize("fault", [hang, slow_headers])
async def test_a_request_that_hangs_is_given_up_and_sent_again(double: OpenAiDouble, fault: Fault) -> None:
    async with connected(double, RemoteConfig("", "tiny", attempt_timeout_s=0.5)) as remote:
        double.faults.append(fault)
        assert await ask(remote) == "The sea is wide."
        assert len(remote.asked) == 2


async def test_a_request_that_the_server_refuses_is_not_sent_again(double: OpenAiDouble) -> None:
    async with connected(double) as remote:
        double.faults.append(status(400, "too long"))
        with pytest.raises(ModelRequestRefusedError, match="too long"):
            await ask(remote)
        assert len(remote.asked) == 1
        assert remote.slm.status.state is EngineState.READY


async def test_a_redirect_is_not_followed_to_a_host_that_nobody_named(double: OpenAiDouble) -> None:
    async with OpenAiDouble().serving() as elsewhere, connected(double) as remote:
        double.faults.append(status(307, location=f"{elsewhere.url}/chat/completions"))
        with pytest.raises(ModelRequestRefusedError, match="status 307"):
            await ask(remote)
        assert elsewhere.requests == []


async def test_after_failures_in_a_row_nothing_is_sent_until_a_probe_succeeds(double: OpenAiDouble) -> None:
    config = RemoteConfig("", "tiny", attempts=1, breaker_failures=3)
    async with connected(double, config) as remote:
        remote.waits.hold()
        double.faults.extend([status(500)] * 3)
        for _ in range(3):
            with pytest.raises(ModelUnavailableError):
                await ask(remote)
        with pytest.raises(ModelUnavailableError, match="3 failures one after the other") as told:
            await ask(remote)
        assert told.value.retry_after_s is not None
        assert len(remote.asked) == 3  # the fourth call never left
        assert remote.slm.status.state is EngineState.DEGRADED
        remote.waits.release()
        await until(lambda: remote.slm.status.state is EngineState.READY)
        assert await ask(remote) == "The sea is wide."
        assert remote.slm.status.restarts == 1


async def test_one_answer_between_failures_keeps_the_server_in_use(double: OpenAiDouble) -> None:
    async with connected(double, RemoteConfig("", "tiny", attempts=1, breaker_failures=3)) as remote:
        for _ in range(3):
            double.faults.extend([status(500)] * 2)
            for _ in range(2):
                with pytest.raises(ModelUnavailableError):
                    await ask(remote)
            assert await ask(remote) == "The sea is wide."
        assert remote.slm.status.restarts == 0


async def test_a_server_that_never_answers_within_deadlines_is_given_up_too(double: OpenAiDouble) -> None:
    config = RemoteConfig("", "tiny", silence_s=0.0, breaker_failures=2)
    async with connected(double, config) as remote:
        remote.waits.hold()
        double.faults.extend([hang, hang])
        for _ in range(2):
            with pytest.raises(ModelTimeoutError):
                await ask(remote, deadline_s=0.05)
        await until(lambda: remote.slm.status.state is EngineState.DEGRADED)
        assert "no answer for" in remote.slm.status.reason
        remote.waits.release()


async def test_callers_in_the_line_hear_at_once_that_the_server_is_away(double: OpenAiDouble) -> None:
    config = RemoteConfig("", "tiny", concurrency=1, attempts=1, breaker_failures=1)
    async with connected(double, config) as remote:
        remote.waits.hold()
        double.gate = asyncio.Event()
        double.faults.append(status(500))
        calls = [asyncio.create_task(ask(remote)) for _ in range(10)]
        await until(lambda: remote.slm.status.queue_depth == 9)
        double.gate.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(one, ModelUnavailableError) for one in answers)
        assert len(remote.asked) == 1
        remote.waits.release()


async def test_nobody_at_the_address_is_told_as_degraded_and_healed_without_a_restart(double: OpenAiDouble) -> None:
    port = double.port
    async with OpenAiDouble().serving() as short_lived:
        port = short_lived.port
    gone = OpenAiDouble(port=port)
    async with connected(gone, ready=False) as remote:
        with pytest.raises(ModelUnavailableError, match="cannot connect"):
            await ask(remote)
        assert remote.slm.status.state is EngineState.DEGRADED
        async with gone.serving():
            await until(lambda: remote.slm.status.state is EngineState.READY)
            assert await ask(remote) == "The sea is wide."


async def test_a_model_that_the_server_lacks_is_named_with_those_that_it_has(double: OpenAiDouble) -> None:
    double.abilities = Abilities(models=("large", "small"))
    async with connected(double, ready=False) as remote:
        with pytest.raises(ModelUnavailableError, match="no model tiny there, but large, small") as told:
            await ask(remote)
        assert told.value.retry_after_s is None
        assert remote.slm.status.state is EngineState.ABSENT
        double.abilities = Abilities()
        await until(lambda: remote.slm.status.state is EngineState.READY)


async def test_a_model_that_is_taken_away_later_is_not_asked_for_again_and_again(double: OpenAiDouble) -> None:
    async with connected(double) as remote:
        double.abilities = Abilities(models=("other",))
        with pytest.raises(ModelUnavailableError, match="does not exist"):
            await ask(remote)
        await until(lambda: remote.slm.status.state is EngineState.ABSENT)
        sent = len(remote.asked)
        remote.waits.hold()
        with pytest.raises(ModelUnavailableError):
            await ask(remote)
        assert not [one for one in remote.asked[sent:] if one.body.get("max_tokens") == 8]
        remote.waits.release()


async def test_a_wrong_key_is_told_without_the_key_and_a_new_one_is_picked_up(
    double: OpenAiDouble, tmp_path: Path
) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("sk-wrong-key\n")
    double.abilities.key = "sk-right-key"
    config = RemoteConfig("", "tiny", api_key_file=key_file)
    with structlog.testing.capture_logs() as logs:
        async with connected(double, config, ready=False) as remote:
            with pytest.raises(ModelUnavailableError, match="status 401") as told:
                await ask(remote)
            assert remote.slm.status.state is EngineState.ABSENT
            key_file.write_text("sk-right-key\n")
            await until(lambda: remote.slm.status.state is EngineState.READY)
            assert await ask(remote) == "The sea is wide."
    assert "sk-" not in str(told.value) + str(logs)


async def test_no_more_requests_are_in_flight_than_allowed(double: OpenAiDouble) -> None:
    async with connected(double, RemoteConfig("", "tiny", concurrency=4)) as remote:
        double.gate = asyncio.Event()
        calls = [asyncio.create_task(ask(remote, f"question {i}")) for i in range(24)]
        await until(lambda: double.in_flight == 4 and remote.slm.status.queue_depth == 20)
        double.gate.set()
        assert await asyncio.gather(*calls) == ["The sea is wide."] * 24
        assert double.most_in_flight == 4


async def test_a_question_overtakes_bulk_work_and_finds_a_place_kept_for_it(double: OpenAiDouble) -> None:
    async with connected(double, RemoteConfig("", "tiny", concurrency=2)) as remote:
        double.gate = asyncio.Event()
        bulk = [asyncio.create_task(ask(remote, f"bulk {i}", priority=BULK)) for i in range(5)]
        await until(lambda: len(remote.asked) == 1)  # the second place is kept
        question = asyncio.create_task(ask(remote, "urgent"))
        await until(lambda: len(remote.asked) == 2)
        assert [one.prompt for one in remote.asked] == ["bulk 0", "urgent"]
        assert remote.slm.status.metrics.waiting == {"interactive": 0, "organize": 0, "bulk": 4}
        double.gate.set()
        await asyncio.gather(question, *bulk)


async def test_callers_that_leave_the_line_leave_no_trace(double: OpenAiDouble) -> None:
    async with connected(double, RemoteConfig("", "tiny", concurrency=1)) as remote:
        double.gate = asyncio.Event()
        first = asyncio.create_task(ask(remote))
        await until(lambda: len(remote.asked) == 1)
        leaving = [asyncio.create_task(ask(remote)) for _ in range(3)]
        await until(lambda: remote.slm.status.queue_depth == 3)
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        double.gate.set()
        await first
        assert await ask(remote) == "The sea is wide."
        assert len(remote.asked) == 2
        assert (remote.link.gate.in_flight, remote.slm.status.queue_depth) == (0, 0)


async def test_a_line_that_is_full_refuses_at_once(double: OpenAiDouble) -> None:
    async with connected(double, RemoteConfig("", "tiny", concurrency=1, max_queue=2)) as remote:
        double.gate = asyncio.Event()
        calls = [asyncio.create_task(ask(remote)) for _ in range(3)]
        await until(lambda: remote.slm.status.queue_depth == 2)
        with pytest.raises(ModelUnavailableError, match="2 calls already wait"):
            await ask(remote)
        double.gate.set()
        await asyncio.gather(*calls)


async def test_stopping_ends_calls_in_flight_and_in_the_line_with_a_typed_error(double: OpenAiDouble) -> None:
    async with connected(double, RemoteConfig("", "tiny", concurrency=2)) as remote:
        double.gate = asyncio.Event()
        calls = [asyncio.create_task(ask(remote)) for _ in range(6)]
        await until(lambda: len(remote.asked) == 2)
        await remote.slm.stop()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(one, ModelUnavailableError) for one in answers), answers
        with pytest.raises(ModelUnavailableError, match="stopping"):
            await ask(remote)
