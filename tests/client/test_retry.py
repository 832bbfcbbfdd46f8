"""How long a client looks for a server that went away, on a clock of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import grpc
import pytest
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from clag_client import ClagError, Ingestion, RetryPolicy
from clag_client.retry import Outage

AWAY = ClagError(grpc.StatusCode.UNAVAILABLE, "nobody answers")


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses_s: list[float] = []

    def clock(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.pauses_s.append(seconds)
        self.now_s += seconds

    def outage(self, policy: RetryPolicy | None = None) -> Outage:
        return Outage(policy or RetryPolicy(), clock=self.clock, sleep=self.sleep)


async def fail(outage: Outage, times: int, *, connected: bool = False) -> None:
    for _ in range(times):
        if connected:
            outage.connected()
        await outage.wait(AWAY, forward=False)


class _Broken(grpc.aio.AioRpcError):
    def __init__(self) -> None:
        super().__init__(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "Socket closed")


class _Call:
    """An Ingest call that plays its answers, then breaks."""

    def __init__(self, *answers: pb.IngestResponse) -> None:
        self._answers: Iterator[pb.IngestResponse] = iter(answers)

    def add_done_callback(self, _callback: object) -> None: ...

    def cancel(self) -> None: ...

    async def write(self, _request: pb.IngestRequest) -> None: ...

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK

    async def read(self) -> pb.IngestResponse:
        answer = next(self._answers, None)
        if answer is None:
            raise _Broken
        return answer


class _Server:
    """Opens the stream, is away until a moment of the clock, then finishes the stream."""

    def __init__(self, time: Time, *, back_s: float) -> None:
        self._time = time
        self._back_s = back_s
        self._calls = 0

    def Ingest(self, **_options: object) -> _Call:  # noqa: N802  # the stub's name
        self._calls += 1
        opened = pb.IngestResponse(opened=pb.IngestOpened(next_seq=1, window_items=10))
        if self._calls == 1:
            return _Call(opened)
        if self._time.now_s < self._back_s:
            return _Call()
        return _Call(opened, pb.IngestResponse(finished=pb.IngestFinished()))


def ingestion(server: _Server, time: Time) -> Ingestion:
    stub = cast("Any", server)
    opening = pb.IngestOpen(namespace="a", stream_id="s")
    return Ingestion(stub, ["one"], opening, metadata=(), outage=time.outage())


@pytest.mark.parametrize("back_s", [0.0, 16.0, 100.0])
async def test_a_stream_that_was_open_waits_for_a_server_that_takes_long_to_restart(back_s: float) -> None:
    time = Time()
    async with ingestion(_Server(time, back_s=back_s), time) as stream:
        await stream.wait()
    assert time.now_s >= back_s
    assert stream.reconnects == len(time.pauses_s)


async def test_a_stream_whose_server_stays_away_ends_within_the_budget() -> None:
    time = Time()
    async with ingestion(_Server(time, back_s=1e9), time) as stream:
        with pytest.raises(ClagError, match="Socket closed"):
            await stream.wait()
    assert 110.0 < time.now_s <= 120.0


async def test_pauses_grow_and_stay_below_the_longest() -> None:
    time = Time()
    outage = time.outage(RetryPolicy(reconnect_budget_s=1e5))
    for _ in range(1_100):  # more than a float has powers of two
        await outage.wait(AWAY, forward=False)
    assert time.pauses_s[0] <= 0.1
    assert all(2.5 <= pause <= 5.0 for pause in time.pauses_s[6:])


async def test_a_connection_that_brought_the_stream_forward_renews_the_budget() -> None:
    time = Time()
    outage = time.outage(RetryPolicy(reconnect_budget_s=10.0))
    for _ in range(50):
        await outage.wait(AWAY, forward=True)
        time.now_s += 9.0
    with pytest.raises(ClagError):
        await fail(outage, 50)


async def test_a_quiet_stream_that_stood_for_an_hour_has_a_whole_budget_again() -> None:
    time = Time()
    outage = time.outage(RetryPolicy(reconnect_budget_s=10.0))
    await outage.wait(AWAY, forward=False)
    outage.connected()
    time.now_s += 3_600.0
    await outage.wait(AWAY, forward=False)
    assert len(time.pauses_s) == 2


async def test_connections_that_break_as_soon_as_they_stand_use_the_budget_up() -> None:
    time = Time()
    outage = time.outage(RetryPolicy(reconnect_budget_s=10.0))
    with pytest.raises(ClagError):
        await fail(outage, 50, connected=True)
    assert time.now_s <= 10.0


async def test_the_pause_that_a_server_asks_for_is_kept_if_the_budget_has_room_for_it() -> None:
    time = Time()
    asked = ClagError(grpc.StatusCode.RESOURCE_EXHAUSTED, "later", retry_after_s=8.0)
    outage = time.outage(RetryPolicy(reconnect_budget_s=10.0))
    await outage.wait(asked, forward=False)
    assert 8.0 <= time.pauses_s[0] <= 9.6
    with pytest.raises(ClagError, match="later"):
        await outage.wait(asked, forward=False)


@pytest.mark.parametrize(
    "error",
    [
        ClagError(grpc.StatusCode.INVALID_ARGUMENT, "wrong"),
        ClagError(
            grpc.StatusCode.UNAVAILABLE,
            "fenced",
            reason=types_pb2.ERROR_REASON_STREAM_FENCED,
            retry_after_s=1.0,
        ),
    ],
)
async def test_an_error_that_trying_again_cannot_mend_is_raised_at_once(error: ClagError) -> None:
    time = Time()
    with pytest.raises(ClagError) as caught:
        await time.outage().wait(error, forward=True)
    assert caught.value is error
    assert not time.pauses_s
