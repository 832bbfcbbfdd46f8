"""A small server that keeps the streaming rules of the contract and can be made to fail in the middle.

It stands in for the product's server only where the client's own behaviour is looked at: credits, reconnects,
resumption. It checks the client: a gap or an exceeded window fails the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import grpc
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from clag.v1.memory_service_pb2_grpc import MemoryServiceServicer, add_MemoryServiceServicer_to_server
from clag_client import AsyncClient
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2


@dataclass
class Faults:
    """What goes wrong, each once."""

    cut_after_items: set[int] = field(default_factory=set)  # cut when so many are stored, before their ack
    fence: bool = False


async def _not_served(_request: object, _context: object) -> None:
    raise NotImplementedError


class StreamDouble:
    """Stores items of streams in memory."""

    CreateMemory = GetContext = UpdateMemory = DeleteMemory = DeleteMemories = _not_served
    Answer = RetrieveStream = ListMemoryHistory = Watch = SignalScene = _not_served

    def __init__(self, *, window: int = 1_024, lag: int = 0, faults: Faults | None = None) -> None:
        self.window = window
        self.lag = lag  # items that are durable and not yet acked
        self.faults = faults or Faults()
        self.stored: dict[str, list[str]] = {}
        self.frames: list[int] = []
        self.opens = 0
        self.acked = 0
        self.left = asyncio.Event()
        self.received = asyncio.Event()
        self.hold_acks = asyncio.Event()
        self.hold_acks.set()
        self.tokens: list[str] = []

    async def Ingest(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.IngestResponse]:  # noqa: N802
        self.tokens += [str(value) for key, value in context.invocation_metadata() if key == "authorization"]
        try:
            opening = (await anext(aiter(request_iterator))).open
            self.opens += 1
            texts = self.stored.setdefault(opening.stream_id, [])
            self.acked = len(texts)
            if self.faults.fence:
                await fail(context, grpc.StatusCode.ABORTED, types_pb2.ERROR_REASON_STREAM_FENCED)
            yield pb.IngestResponse(opened=pb.IngestOpened(next_seq=len(texts) + 1, window_items=self.window))
            async for request in request_iterator:
                if request.HasField("finish"):
                    assert request.finish.last_seq == len(texts)
                    yield pb.IngestResponse(finished=pb.IngestFinished(created=len(texts)))
                    return
                yield await self._batch(request.batch, texts, context)
        finally:
            self.left.set()  # grpc ends the iterator alike for half-close and cancellation

    async def _batch(self, batch: pb.IngestBatch, texts: list[str], context: Any) -> pb.IngestResponse:
        if batch.first_seq != len(texts) + 1:
            await fail(context, grpc.StatusCode.OUT_OF_RANGE, types_pb2.ERROR_REASON_SEQUENCE_GAP)
        if len(texts) + len(batch.items) - self.acked > self.window:
            await fail(context, grpc.StatusCode.RESOURCE_EXHAUSTED, types_pb2.ERROR_REASON_WINDOW_EXCEEDED)
        self.frames.append(len(batch.items))
        self.received.set()
        results = []
        for item in batch.items:
            texts.append(item.text)
            if len(texts) in self.faults.cut_after_items:
                self.faults.cut_after_items.discard(len(texts))
                await fail(context, grpc.StatusCode.UNAVAILABLE, types_pb2.ERROR_REASON_DRAINING, retry_s=0.0)
            created = pb.DISPOSITION_CREATED
            results.append(
                pb.IngestResult(
                    seq=len(texts), disposition=created, level=pb.ACK_LEVEL_DURABLE, memory_id=f"m{len(texts)}"
                )
            )
        await self.hold_acks.wait()
        self.acked = max(self.acked, len(texts) - self.lag)
        ack = pb.IngestAck(
            acked_through=self.acked, durable_through=len(texts), window_items=self.window, results=results
        )
        return pb.IngestResponse(ack=ack)

    async def GetMemory(self, request: pb.GetMemoryRequest, context: Any) -> pb.GetMemoryResponse:  # noqa: N802
        if request.memory_id == "slow":
            await asyncio.Event().wait()
        await fail(context, grpc.StatusCode.NOT_FOUND, types_pb2.ERROR_REASON_NOT_FOUND, field="memory_id")
        return pb.GetMemoryResponse()

    async def Retrieve(  # noqa: N802
        self, request: pb.RetrieveRequest, context: Any
    ) -> AsyncIterator[pb.RetrieveResponse]:
        try:
            yield pb.RetrieveResponse(context=pb.AssembledContext(text=request.query.text))
            if request.max_memories == 1:
                await asyncio.Event().wait()
            yield pb.RetrieveResponse(done=pb.RetrieveDone())
        except asyncio.CancelledError:
            self.left.set()
            raise

    async def ListMemories(self, request: pb.ListMemoriesRequest, context: Any) -> pb.ListMemoriesResponse:  # noqa: N802
        start = int(request.page_token or "0")
        page = [types_pb2.Memory(memory_id=f"m{number}") for number in range(start, min(start + 2, 5))]
        return pb.ListMemoriesResponse(memories=page, next_page_token=str(start + 2) if start + 2 < 5 else "")


async def fail(
    context: Any,
    code: grpc.StatusCode,
    reason: types_pb2.ErrorReason.ValueType,
    *,
    retry_s: float | None = None,
    field: str = "",
) -> None:
    """End a call with the details that the contract promises."""
    details: list[Any] = [
        error_details_pb2.ErrorInfo(reason=types_pb2.ErrorReason.Name(reason), domain="clag", metadata={"a": "b"})
    ]
    if retry_s is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(retry_s * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    if field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=field, description="is wrong")
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    packed = []
    for detail in details:
        packed.append(any_pb2.Any())
        packed[-1].Pack(detail)
    status = status_pb2.Status(code=code.value[0], message="no", details=packed)
    await context.abort(code, "no", (("grpc-status-details-bin", status.SerializeToString()),))


@asynccontextmanager
async def serving(servicer: StreamDouble, folder: Path) -> AsyncIterator[str]:
    """Serve on a Unix socket; yields its address."""
    server = grpc.aio.server()
    add_MemoryServiceServicer_to_server(cast("MemoryServiceServicer", servicer), server)
    address = f"unix:{folder}/s"
    server.add_insecure_port(address)
    await server.start()
    try:
        yield address
    finally:
        await server.stop(None)


@asynccontextmanager
async def connected(servicer: StreamDouble, folder: Path, *, token: str = "") -> AsyncIterator[AsyncClient]:
    """Serve, and connect a client."""
    async with serving(servicer, folder) as address, AsyncClient(address, token=token) as client:
        yield client
