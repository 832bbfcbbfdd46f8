"""The client's stream: credits, frames, reconnects, resumption, failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from clag_client import AsyncClient, ClagError, NewMemory, RetryPolicy, SourceError

from tests.client.stream_double import Faults, StreamDouble, connected, serving


def texts(count: int) -> list[str]:
    return [f"note {number}" for number in range(1, count + 1)]


async def test_every_item_is_stored_once_and_gets_an_outcome(tmp_path: Path) -> None:
    double = StreamDouble()
    async with connected(double, tmp_path) as client, client.ingest("a", texts(500), stream_id="s") as stream:
        outcomes = [outcome async for outcome in stream]
    assert double.stored["s"] == texts(500)
    assert [outcome.seq for outcome in outcomes] == list(range(1, 501))
    assert all(outcome.final for outcome in outcomes)
    assert stream.totals is not None
    assert stream.totals.created == 500


async def test_items_travel_in_frames_of_at_most_sixty_four(tmp_path: Path) -> None:
    double = StreamDouble()
    async with connected(double, tmp_path) as client, client.ingest("a", texts(300)) as stream:
        await stream.wait()
    assert max(double.frames) == 64
    assert len(double.frames) < 20


async def test_frames_stay_below_a_mebibyte(tmp_path: Path) -> None:
    double = StreamDouble()
    async with connected(double, tmp_path) as client, client.ingest("a", ["x" * 32_000] * 100) as stream:
        await stream.wait()
    assert max(double.frames) == 32


@pytest.mark.parametrize("lag", [0, 1, 6])
async def test_a_small_window_is_respected(tmp_path: Path, lag: int) -> None:
    double = StreamDouble(window=7, lag=lag)  # the double fails the call when more is unacknowledged
    async with connected(double, tmp_path) as client, client.ingest("a", texts(100), stream_id="s") as stream:
        await stream.wait()
    assert len(double.stored["s"]) == 100
    assert max(double.frames) <= 7


async def test_without_acknowledgements_no_more_than_the_window_is_sent(tmp_path: Path) -> None:
    double = StreamDouble(window=100)
    double.hold_acks.clear()
    taken = 0

    def source() -> Iterator[str]:
        nonlocal taken
        for text in texts(5_000):
            taken += 1
            yield text

    async with connected(double, tmp_path) as client, client.ingest("a", source(), stream_id="s") as stream:
        await double.received.wait()
        assert taken <= 100 + 2 * 64 + 1  # the window, the queue, the one in hand
        double.hold_acks.set()
        totals = await stream.wait()
    assert totals.created == 5_000


@pytest.mark.parametrize("cuts", [{1}, {64}, {65}, {200}, {10, 150, 299}])
async def test_a_cut_connection_is_resumed_without_loss_or_doubles(tmp_path: Path, cuts: set[int]) -> None:
    double = StreamDouble(faults=Faults(cut_after_items=set(cuts)))
    async with connected(double, tmp_path) as client, client.ingest("a", texts(300), stream_id="s") as stream:
        outcomes = [outcome async for outcome in stream]
    assert double.stored["s"] == texts(300)
    assert {outcome.seq for outcome in outcomes} == set(range(1, 301))
    assert stream.reconnects == len(cuts)


async def test_a_server_that_restarts_is_found_again(tmp_path: Path) -> None:
    double = StreamDouble()
    go_on = asyncio.Event()

    async def source() -> AsyncIterator[str]:
        yield "before"
        await go_on.wait()
        yield "after"

    async with AsyncClient(f"unix:{tmp_path}/s") as client:
        async with serving(double, tmp_path):
            stream = await client.ingest("a", source(), stream_id="s").__aenter__()
            first = await anext(stream)
        go_on.set()
        async with serving(double, tmp_path):
            await stream.wait()
            await stream.__aexit__(None, None, None)
    assert first.memory_id == "m1"
    assert double.stored["s"] == ["before", "after"]


async def test_running_the_same_stream_again_sends_only_the_rest(tmp_path: Path) -> None:
    double = StreamDouble()
    async with connected(double, tmp_path) as client:
        async with client.ingest("a", texts(120), stream_id="s") as stream:
            await stream.wait()
        async with client.ingest("a", texts(150), stream_id="s") as again:
            outcomes = [outcome.seq async for outcome in again]
    assert again.resumed_at == 121
    assert outcomes == list(range(121, 151))
    assert double.stored["s"] == texts(150)


async def test_an_item_of_a_live_source_is_sent_before_the_next_one_exists(tmp_path: Path) -> None:
    double = StreamDouble()
    acknowledged = asyncio.Event()

    async def source() -> AsyncIterator[str]:
        yield "one"
        await acknowledged.wait()
        yield "two"

    async with connected(double, tmp_path) as client, client.ingest("a", source()) as stream:
        assert (await anext(stream)).seq == 1
        acknowledged.set()
        assert (await anext(stream)).seq == 2


async def test_a_fenced_stream_is_not_opened_again(tmp_path: Path) -> None:
    double = StreamDouble(faults=Faults(fence=True))
    async with connected(double, tmp_path) as client, client.ingest("a", texts(3)) as stream:
        with pytest.raises(ClagError) as caught:
            await stream.wait()
    assert caught.value.reason == types_pb2.ERROR_REASON_STREAM_FENCED
    assert double.opens == 1


async def test_a_server_that_was_never_there_is_reported_at_once(tmp_path: Path) -> None:
    async with AsyncClient(f"unix:{tmp_path}/none") as client, client.ingest("a", texts(3)) as stream:
        with pytest.raises(ClagError) as caught:
            await stream.wait()
    assert caught.value.code == grpc.StatusCode.UNAVAILABLE
    assert stream.reconnects == 0


async def test_a_server_that_stays_away_is_given_up_when_the_budget_is_used_up(tmp_path: Path) -> None:
    double = StreamDouble()
    policy = RetryPolicy(reconnect_budget_s=0.05, first_pause_s=0.01)
    async with AsyncClient(f"unix:{tmp_path}/s", retry=policy) as client:
        never = asyncio.Event()

        async def source() -> AsyncIterator[str]:
            yield "one"
            await never.wait()

        async with client.ingest("a", source()) as stream:
            async with serving(double, tmp_path):
                await anext(stream)
            with pytest.raises(ClagError) as caught:
                await stream.wait()
    assert caught.value.code == grpc.StatusCode.UNAVAILABLE


async def test_a_failing_source_is_named_by_item_and_what_came_before_is_kept(tmp_path: Path) -> None:
    def source() -> Iterator[str | NewMemory]:
        yield "fine"
        yield NewMemory("lone \ud83d surrogate")

    double = StreamDouble()
    async with connected(double, tmp_path) as client, client.ingest("a", source()) as stream:
        with pytest.raises(SourceError) as caught:
            await stream.wait()
    assert caught.value.seq == 2
    assert list(double.stored.values()) == [["fine"]]

    def broken() -> Iterator[str]:
        yield "fine"
        raise OSError("the file is gone")

    async with connected(double, tmp_path) as client, client.ingest("a", broken()) as stream:
        with pytest.raises(SourceError, match="the file is gone") as caught:
            await stream.wait()
    assert caught.value.seq == 2
    assert isinstance(caught.value.__cause__, OSError)


async def test_leaving_early_ends_the_stream_on_the_server(tmp_path: Path) -> None:
    double = StreamDouble()

    async def endless() -> AsyncIterator[str]:
        yield "one"
        await asyncio.Event().wait()

    async with connected(double, tmp_path) as client:
        async with client.ingest("a", endless()) as stream:
            await anext(stream)
        await asyncio.wait_for(double.left.wait(), timeout=10)


async def test_outcomes_below_the_level_asked_for_are_not_final(tmp_path: Path) -> None:
    double = StreamDouble()
    async with (
        connected(double, tmp_path) as client,
        client.ingest("a", texts(1), ack_level=pb.ACK_LEVEL_ORGANIZED) as stream,
    ):
        assert not (await anext(stream)).final


async def test_items_lost_sight_of_with_a_connection_get_a_last_outcome(tmp_path: Path) -> None:
    double = StreamDouble(faults=Faults(cut_after_items={20}))
    level = pb.ACK_LEVEL_ORGANIZED  # which the double never reports
    async with connected(double, tmp_path) as client, client.ingest("a", texts(30), ack_level=level) as stream:
        last = {outcome.seq: outcome async for outcome in stream}
    assert [seq for seq, outcome in last.items() if outcome.final] == list(range(1, 21))
    assert stream.reconnects == 1
