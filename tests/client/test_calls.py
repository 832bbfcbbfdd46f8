"""Calls without a method of their own, and calls that are cancelled or whose client is closed."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from clag_client import AsyncClient, ClagError, Client, SyncIngestion

from tests.client.stream_double import StreamDouble, connected, serving

MISSING = pb.GetMemoryRequest(memory_id="m")
SLOW = pb.GetMemoryRequest(memory_id="slow")
HANGING = pb.RetrieveRequest(query=pb.Query(text="q"), max_memories=1)


async def test_any_method_of_a_stub_can_be_called_with_the_clients_token_and_errors(tmp_path: Path) -> None:
    double = StreamDouble()
    async with connected(double, tmp_path, token="secret") as client:
        page = await client.call(client.memory.ListMemories, pb.ListMemoriesRequest())
        assert [memory.memory_id for memory in page.memories] == ["m0", "m1"]
        with pytest.raises(ClagError) as caught:
            await client.call(client.memory.GetMemory, MISSING)
        assert caught.value.reason == types_pb2.ERROR_REASON_NOT_FOUND
        with pytest.raises(ClagError) as caught:
            await client.call(client.memory.GetMemory, SLOW, timeout_s=0.1)
        assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
        frames = [pb.IngestRequest(open=pb.IngestOpen(stream_id="s")), pb.IngestRequest(finish=pb.IngestFinish())]
        async with client.call_stream(client.memory.Ingest, frames) as answers:
            kinds = [answer.WhichOneof("frame") async for answer in answers]
    assert kinds == ["opened", "finished"]
    assert double.tokens == ["Bearer secret"]


async def test_closing_a_client_ends_its_calls_with_an_error_and_cancels_no_task(tmp_path: Path) -> None:
    double = StreamDouble()

    async def endless() -> AsyncIterator[str]:
        yield "one"
        await asyncio.Event().wait()

    async with serving(double, tmp_path) as address:
        client = AsyncClient(address)
        slow = asyncio.create_task(client.call(client.memory.GetMemory, SLOW))
        async with client.ingest("a", endless()) as stream, client.retrieve("a", "q", max_memories=1) as stages:
            await anext(stream)
            await anext(stages)
            await client.close()
            for waiting in (slow, stream.wait(), anext(stages)):
                with pytest.raises(ClagError) as caught:
                    await waiting
                assert caught.value.code is grpc.StatusCode.CANCELLED


async def test_an_ingestion_ends_at_its_deadline(tmp_path: Path) -> None:
    async def endless() -> AsyncIterator[str]:
        yield "one"
        await asyncio.Event().wait()

    async with (
        connected(StreamDouble(), tmp_path) as client,
        client.ingest("a", endless(), timeout_s=0.3) as stream,
    ):
        with pytest.raises(ClagError) as caught:
            await stream.wait()
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_what_a_thread_waits_for_is_cancelled_from_another(tmp_path: Path) -> None:
    async with serving(StreamDouble(), tmp_path) as address:
        await asyncio.to_thread(_cancelled_from_here, address)


def _cancelled_from_here(address: str) -> None:
    with Client(address) as client, concurrent.futures.ThreadPoolExecutor() as threads:
        future = client.call_future(client.memory.GetMemory, SLOW)
        future.cancel()
        with pytest.raises(concurrent.futures.CancelledError):
            future.result(20)
        with client.call_stream(client.memory.Retrieve, HANGING) as answers:
            next(answers)
            waiting = threads.submit(next, answers)
            answers.cancel()
            with pytest.raises(ClagError) as caught:
                waiting.result(20)
            assert caught.value.code is grpc.StatusCode.CANCELLED
        with client.ingest("a", _one_and_no_end()) as stream:
            ended = threads.submit(_outcomes, stream)
            stream.cancel()
            with pytest.raises(ClagError) as caught:
                ended.result(20)
            assert caught.value.code is grpc.StatusCode.CANCELLED


def _one_and_no_end() -> Iterator[str]:
    while True:
        yield "again"


def _outcomes(stream: SyncIngestion) -> int:
    return sum(1 for _ in stream)


async def test_closing_a_client_ends_what_other_threads_wait_for(tmp_path: Path) -> None:
    async with serving(StreamDouble(), tmp_path) as address:
        await asyncio.to_thread(_closed_from_here, address)


def _closed_from_here(address: str) -> None:
    client = Client(address)
    future = client.call_future(client.memory.GetMemory, SLOW)
    client.close()
    client.close()
    with pytest.raises((ClagError, concurrent.futures.CancelledError)):
        future.result(20)
