"""Many questions over one call, and answers: what the client promises, with asyncio and without."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from clag_client import ClagError, Client, FieldViolation
from clag_client.retrieval_stream import RetrievalStream

from tests.client.query_double import QueryDouble, asking
from tests.support.ingest import store, texts
from tests.support.process import ServerProcess, Stubs


async def test_answers_come_to_whoever_asked_in_any_order(tmp_path: Path) -> None:
    double = QueryDouble(most=8)
    async with asking(double, tmp_path) as client, client.retrieve_stream() as stream:
        first, second = await stream.ask("a", "one"), await stream.ask("a", "two")
        double.go.set()
        assert (await second.result()).context.text == "two"
        assert [stage.WhichOneof("stage") async for stage in first] == ["context", "done"]
        assert [stage async for stage in first] == []


async def test_no_more_are_in_flight_than_the_server_takes(tmp_path: Path) -> None:
    double = QueryDouble(most=2)
    async with asking(double, tmp_path) as client, client.retrieve_stream() as stream:
        asking_all = [asyncio.create_task(stream.ask("a", f"q{n}")) for n in range(20)]
        double.go.set()
        pending = await asyncio.gather(*asking_all)
        found = [(await one.result()).context.text for one in pending]
    assert sorted(found) == sorted(f"q{n}" for n in range(20))
    assert double.most_seen <= 2


async def test_a_query_that_fails_raises_its_own_error_and_the_others_go_on(tmp_path: Path) -> None:
    double = QueryDouble()
    double.go.set()
    async with asking(double, tmp_path) as client, client.retrieve_stream() as stream:
        bad, good = await stream.ask("a", "bad"), await stream.ask("a", "good")
        with pytest.raises(ClagError) as caught:
            await bad.result()
        assert (await good.result()).context.text == "good"
    error = caught.value
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, types_pb2.ERROR_REASON_INVALID_FIELD)
    assert error.violations == (FieldViolation("query.text", "is bad"),)


async def test_a_query_can_be_cancelled_and_one_that_is_done_is_let_be(tmp_path: Path) -> None:
    double = QueryDouble()
    async with asking(double, tmp_path) as client, client.retrieve_stream() as stream:
        left, kept = await stream.ask("a", "left"), await stream.ask("a", "kept")
        await left.cancel()
        with pytest.raises(ClagError) as caught:
            await left.result()
        assert caught.value.code is grpc.StatusCode.CANCELLED
        double.go.set()
        assert (await kept.result()).context.text == "kept"
        await kept.cancel()
    assert double.cancelled == [left.query_id]


async def test_when_the_stream_ends_every_query_in_flight_and_every_later_one_says_why(tmp_path: Path) -> None:
    double = QueryDouble(most=8)
    async with asking(double, tmp_path) as client, client.retrieve_stream() as stream:
        waiting = await stream.ask("a", "waiting")
        await stream.ask("a", "end")
        with pytest.raises(ClagError, match="over"):
            await waiting.result()
        with pytest.raises(ClagError, match="over"):
            await stream.ask("a", "later")


async def test_a_question_that_cannot_be_sent_takes_no_place(tmp_path: Path) -> None:
    double = QueryDouble(most=2)
    double.go.set()
    async with asking(double, tmp_path) as client, client.retrieve_stream() as stream, asyncio.timeout(30):
        for _ in range(5):
            with pytest.raises(UnicodeEncodeError):
                await stream.ask("a", "\ud800")
            with pytest.raises(ValueError, match="range"):
                await stream.ask("a", "q", context_tokens=-1)
        assert (await (await stream.ask("a", "good")).result()).context.text == "good"


async def test_whoever_waits_for_a_place_hears_that_the_stream_ended(tmp_path: Path) -> None:
    double = QueryDouble(most=2)

    async def ask(stream: RetrievalStream, text: str) -> grpc.StatusCode:
        with pytest.raises(ClagError) as caught:
            await (await stream.ask("a", text)).result()
        return caught.value.code

    async with asking(double, tmp_path) as client, client.retrieve_stream() as stream, asyncio.timeout(30):
        waiting = [asyncio.create_task(ask(stream, f"q{n}")) for n in range(50)]
        while len(double.asked) < 2:  # noqa: ASYNC110 - the double tells nobody
            await asyncio.sleep(0.005)
        end = pb.RetrieveRequest(namespace="a", query=pb.Query(text="end"))
        await stream._send(pb.RetrieveStreamRequest(query_id="x", retrieve=end))  # the server ends the stream
        codes = await asyncio.gather(*waiting)
    assert set(codes) == {grpc.StatusCode.UNAVAILABLE}


async def test_a_server_that_is_not_there_is_told_at_the_first_question(tmp_path: Path) -> None:
    async with asking(QueryDouble(), tmp_path) as client:
        pass
    async with type(client)(f"unix:{tmp_path}/nobody") as lonely, lonely.retrieve_stream() as stream:
        with pytest.raises(ClagError) as caught:
            await stream.ask("a", "x")
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE


async def test_giving_up_a_question_that_is_being_sent_does_not_end_the_stream(tmp_path: Path) -> None:
    double = QueryDouble(most=1)
    async with asking(double, tmp_path) as client, client.retrieve_stream() as stream:
        first = await stream.ask("a", "first")
        given_up = asyncio.create_task(stream.ask("a", "given up"))  # waits for the only slot
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        double.go.set()
        assert (await first.result()).context.text == "first"
        assert (await (await stream.ask("a", "second")).result()).context.text == "second"
    assert double.asked == ["first", "second"]


async def test_leaving_the_stream_cancels_it_and_done_asking_half_closes_it(tmp_path: Path) -> None:
    double = QueryDouble()
    async with asking(double, tmp_path) as client:
        async with client.retrieve_stream() as stream:
            await stream.ask("a", "never answered")
        async with asyncio.timeout(10):
            await double.left.wait()
        double.go.set()
        async with client.retrieve_stream() as stream:
            last = await stream.ask("a", "last")
            await stream.done_asking()
            assert (await last.result()).context.text == "last"
            async with asyncio.timeout(10):
                await double.half_closed.wait()


async def test_an_answer_comes_in_pieces_and_leaving_it_early_ends_it(tmp_path: Path) -> None:
    double = QueryDouble()
    async with asking(double, tmp_path) as client:
        async with client.answer("a", "so be it", instructions="m7") as frames:
            found = [frame async for frame in frames]
        assert [frame.delta.text for frame in found[:-1]] == ["so", "be", "it"]
        assert list(found[-1].done.memory_ids) == ["m7"]
        double.left.clear()
        async with client.answer("a", "so be it", max_tokens=1) as frames:
            assert (await anext(frames)).delta.text == "so"
        async with asyncio.timeout(10):
            await double.left.wait()


def test_programs_without_an_event_loop_ask_and_hear_the_same(
    shared_server: ServerProcess, stubs: Stubs, namespace: str
) -> None:
    store(stubs, namespace, texts("the dock is in bay B3", "the pallet is red"))
    with Client(f"unix:{shared_server.socket}") as client:
        with client.retrieve_stream() as stream:
            dock = stream.ask(namespace, "where is the dock?")
            pallet = stream.ask(namespace, "which pallet?", context_tokens=50)
            assert pallet.result().context.text
            assert [stage.WhichOneof("stage") for stage in dock] == ["clusters", "memories", "done"]
            bad = stream.ask(namespace, "")
            with pytest.raises(ClagError) as caught:
                bad.result()
            assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
            stream.done_asking()
        with client.answer(namespace, "who composed the violin sonata?") as frames:
            last = list(frames)[-1]
    assert last.done.end == pb.ANSWER_END_NO_EVIDENCE
