"""A servicer on a real gRPC server: handlers see valid messages only, and streams outlive bad items."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from clag.v1 import memory_service_pb2 as memory
from clag.v1.memory_service_pb2_grpc import MemoryServiceStub
from clag.v1.types_pb2 import Memory, MemoryInput

from clag_server.contract.codec import Frame, register

BAD_TEXT = b"\xed\xa0\xbd"


async def _not_served(_request: object, _context: object) -> None:
    raise NotImplementedError


class Recorder:
    """Keeps what reached the handlers; the methods are named as the contract names them."""

    CreateMemory = GetContext = ListMemories = UpdateMemory = DeleteMemory = DeleteMemories = _not_served
    Answer = RetrieveStream = ListMemoryHistory = Watch = SignalScene = _not_served

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.closed = asyncio.Event()

    async def GetMemory(self, request: memory.GetMemoryRequest, _: Any) -> memory.GetMemoryResponse:  # noqa: N802
        self.seen.append(request.memory_id)
        return memory.GetMemoryResponse(memory=Memory(memory_id=request.memory_id))

    async def Retrieve(self, request: memory.RetrieveRequest, _: Any) -> AsyncIterator[memory.RetrieveResponse]:  # noqa: N802
        try:
            yield memory.RetrieveResponse(context=memory.AssembledContext(text=request.query.text))
            await asyncio.Event().wait()
        finally:
            self.closed.set()

    async def Ingest(  # noqa: N802
        self, frames: AsyncIterator[Frame[memory.IngestRequest]], _: Any
    ) -> AsyncIterator[memory.IngestResponse]:
        async for frame in frames:
            for index, item in enumerate(frame.message.batch.items):
                wrong = frame.blanked.get(index)
                self.seen.append(wrong[0].field if wrong else item.text)
            yield memory.IngestResponse(ack=memory.IngestAck(acked_through=len(self.seen)))


@asynccontextmanager
async def serving(servicer: Recorder, folder: Path) -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server()
    register(server, servicer, "MemoryService")
    address = f"unix:{folder}/s"
    server.add_insecure_port(address)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            yield channel
    finally:
        await server.stop(None)


async def test_a_valid_request_reaches_the_handler(tmp_path: Path) -> None:
    servicer = Recorder()
    async with serving(servicer, tmp_path) as channel:
        stub = MemoryServiceStub(channel)
        answer = await stub.GetMemory(memory.GetMemoryRequest(namespace="a", memory_id="m:1"))
    assert answer.memory.memory_id == "m:1"
    assert servicer.seen == ["m:1"]


@pytest.mark.parametrize("memory_id", ["", " ", "../x"])
async def test_a_request_that_breaks_a_rule_never_reaches_the_handler(tmp_path: Path, memory_id: str) -> None:
    servicer = Recorder()
    async with serving(servicer, tmp_path) as channel:
        stub = MemoryServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match="memory_id"):
            await stub.GetMemory(memory.GetMemoryRequest(namespace="a", memory_id=memory_id))
    assert servicer.seen == []


async def test_a_request_with_ill_formed_text_never_reaches_the_handler(tmp_path: Path) -> None:
    servicer = Recorder()
    request = memory.GetMemoryRequest(namespace="a", memory_id="@@@").SerializeToString().replace(b"@@@", BAD_TEXT)
    async with serving(servicer, tmp_path) as channel:
        call: Any = channel.unary_unary("/clag.v1.MemoryService/GetMemory")
        with pytest.raises(grpc.aio.AioRpcError, match=r"memory_id.*UTF-8"):
            await call(request)
    assert servicer.seen == []


async def test_a_stream_goes_on_past_an_item_with_ill_formed_text(tmp_path: Path) -> None:
    servicer = Recorder()
    texts = ["one", "@@@", "three"]
    batch = memory.IngestBatch(first_seq=1, items=[MemoryInput(text=text) for text in texts])
    spoiled = memory.IngestRequest(batch=batch).SerializeToString().replace(b"@@@", BAD_TEXT)
    after = memory.IngestBatch(first_seq=4, items=[MemoryInput(text="four")])
    good = memory.IngestRequest(batch=after).SerializeToString()
    async with serving(servicer, tmp_path) as channel:
        ingest: Any = channel.stream_stream("/clag.v1.MemoryService/Ingest")
        answers = [answer async for answer in ingest(iter([spoiled, good]))]
    assert len(answers) == 2
    assert servicer.seen == ["one", "text", "three", "four"]


async def test_a_frame_that_breaks_a_rule_ends_the_stream_with_the_field(tmp_path: Path) -> None:
    servicer = Recorder()
    async with serving(servicer, tmp_path) as channel:
        call = MemoryServiceStub(channel).Ingest(
            iter([memory.IngestRequest(batch=memory.IngestBatch(first_seq=0))])
        )
        with pytest.raises(grpc.aio.AioRpcError, match="first_seq"):
            await call.read()


async def test_a_handler_cleans_up_when_the_caller_goes_away(tmp_path: Path) -> None:
    servicer = Recorder()
    async with serving(servicer, tmp_path) as channel:
        call = MemoryServiceStub(channel).Retrieve(
            memory.RetrieveRequest(namespace="a", query=memory.Query(text="q"))
        )
        first = await anext(aiter(call))
        assert first.context.text == "q"
        call.cancel()
        await asyncio.wait_for(servicer.closed.wait(), timeout=10)


async def test_a_servicer_that_lacks_a_method_is_refused_at_once() -> None:
    server = grpc.aio.server()
    with pytest.raises(AttributeError):
        register(server, object(), "MemoryService")
    with pytest.raises(KeyError):
        register(server, Recorder(), "NoSuchService")
