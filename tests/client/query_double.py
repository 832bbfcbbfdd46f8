"""A small server of RetrieveStream and Answer, for what the client does on its own: slots, tags, ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from clag_client import AsyncClient


class QueryDouble:
    """Answers a query with its own text once `go` is set; "bad" with an error, "end" by ending the stream.

    A query that is one too many in flight fails the call: the client must not ask it.
    """

    def __init__(self, *, most: int = 2) -> None:
        self.most = most
        self.go = asyncio.Event()
        self.asked: list[str] = []
        self.cancelled: list[str] = []
        self.most_seen = 0
        self.left = asyncio.Event()
        self.half_closed = asyncio.Event()

    async def retrieve_stream(self, frames: AsyncIterator[pb.RetrieveStreamRequest], context: Any) -> None:
        waiting: dict[str, str] = {}
        await context.write(pb.RetrieveStreamResponse(limits=pb.RetrieveStreamLimits(max_in_flight=self.most)))
        writing = asyncio.Lock()

        async def answer(query_id: str) -> None:
            await self.go.wait()
            text = waiting.pop(query_id, None)
            if text is None:
                return
            async with writing:
                if text == "bad":
                    error = types_pb2.ItemError(
                        reason=types_pb2.ERROR_REASON_INVALID_FIELD, field="query.text", message="is bad"
                    )
                    await context.write(pb.RetrieveStreamResponse(query_id=query_id, error=error))
                    return
                said = pb.AssembledContext(text=text)
                await context.write(pb.RetrieveStreamResponse(query_id=query_id, context=said))
                await context.write(pb.RetrieveStreamResponse(query_id=query_id, done=pb.RetrieveDone()))

        try:
            async with asyncio.TaskGroup() as group:
                async for frame in frames:
                    if frame.HasField("cancel"):
                        self.cancelled.append(frame.query_id)
                        if waiting.pop(frame.query_id, None) is not None:
                            error = types_pb2.ItemError(reason=types_pb2.ERROR_REASON_CANCELLED, message="gone")
                            async with writing:
                                await context.write(pb.RetrieveStreamResponse(query_id=frame.query_id, error=error))
                        continue
                    text = frame.retrieve.query.text
                    self.asked.append(text)
                    if text == "end":
                        await context.abort(grpc.StatusCode.UNAVAILABLE, "over")
                    waiting[frame.query_id] = text
                    self.most_seen = max(self.most_seen, len(waiting))
                    group.create_task(answer(frame.query_id))
                self.half_closed.set()
        finally:
            self.left.set()

    async def answer(self, request: pb.AnswerRequest, context: Any) -> None:
        try:
            for word in request.retrieve.query.text.split():
                await context.write(pb.AnswerResponse(delta=pb.AnswerDelta(text=word)))
            if request.max_tokens == 1:
                await asyncio.Event().wait()
            done = pb.AnswerDone(end=pb.ANSWER_END_COMPLETE, memory_ids=[request.instructions])
            await context.write(pb.AnswerResponse(done=done))
        finally:
            self.left.set()


@asynccontextmanager
async def asking(double: QueryDouble, folder: Path) -> AsyncIterator[AsyncClient]:
    """Serve, and connect a client."""
    server = grpc.aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "RetrieveStream": grpc.stream_stream_rpc_method_handler(
            double.retrieve_stream, pb.RetrieveStreamRequest.FromString, _bytes
        ),
        "Answer": grpc.unary_stream_rpc_method_handler(double.answer, pb.AnswerRequest.FromString, _bytes),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("clag.v1.MemoryService", handlers),))
    server.add_insecure_port(f"unix:{folder}/s")
    await server.start()
    try:
        async with AsyncClient(f"unix:{folder}/s") as client:
            yield client
    finally:
        await server.stop(None)


def _bytes(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
