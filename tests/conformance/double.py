"""A scripted server in the driver, where the client is looked at: credits, frames, resuming, errors, limits.

It keeps the streaming rules of the contract, notes what breaks them, and fails where a scenario says so.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast

import grpc
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from clag.v1.memory_service_pb2_grpc import MemoryServiceServicer, add_MemoryServiceServicer_to_server

from tests.conformance.double_stream import Behaviour, Seen, Stream
from tests.conformance.failures import fail

__all__ = ["Behaviour", "Double", "serving"]

_MESSAGE_BYTES: Final = 64 * 1024 * 1024


class Double:
    """The servicer.

    Args:
        behaviour: what it does.

    Attributes:
        seen: what it saw.
    """

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.seen = Seen()
        self._released = asyncio.Event()
        if not behaviour.hold:
            self._released.set()

    def release(self) -> None:
        """Let held acknowledgements go."""
        self._released.set()

    async def Ingest(self, requests: Any, context: Any) -> AsyncIterator[pb.IngestResponse]:  # noqa: N802
        self._note_token(context)
        self.seen.opens += 1
        opening = (await anext(aiter(requests))).open
        if self.seen.opens <= self.behaviour.refuse_opens:
            await fail(context, "DRAINING", retry_ms=self.behaviour.retry_ms)
        if self.seen.opens <= self.behaviour.fence_opens:
            await fail(context, "STREAM_FENCED")
        stream = Stream(self.behaviour, self.seen, self.seen.stored.setdefault(opening.stream_id, []))
        yield stream.opened()
        async for request in requests:
            match request.WhichOneof("frame"):
                case "batch":
                    stream.take(request)
                    if _due(self.behaviour.end_quietly_after, stream.position):
                        return
                    if _due(self.behaviour.cut_after, stream.position):
                        await fail(
                            context, "DRAINING", code=self.behaviour.cut_code, retry_ms=self.behaviour.retry_ms
                        )
                    await self._released.wait()
                    await asyncio.sleep(self.behaviour.ack_delay_ms / 1_000)
                    yield stream.ack()
                    while stream.window == 0:
                        await asyncio.sleep(self.behaviour.again_after_ms / 1_000)
                        yield stream.ack()
                case "finish":
                    if request.finish.last_seq != stream.position:
                        self.seen.broken.append(f"finish names {request.finish.last_seq}, not {stream.position}")
                    yield stream.finished()
                    return
                case other:
                    self.seen.broken.append(f"a frame {other} after open")
                    await fail(context, "FRAME_ORDER")

    async def GetMemory(self, request: pb.GetMemoryRequest, context: Any) -> pb.GetMemoryResponse:  # noqa: N802
        """By namespace: `fail` (memory_id is a reason), `hang`, `large` (memory_id is a size); others echo."""
        self._note_token(context)
        if request.namespace == "fail":
            reason, _, retry_ms = request.memory_id.partition(":")
            await fail(context, reason, retry_ms=int(retry_ms) if retry_ms else None, field="memory_id")
        if request.namespace == "hang":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.seen.cancelled += 1
                raise
        text = request.memory_id
        if request.namespace == "large":
            text = "x" * (int(request.memory_id) - _overhead(int(request.memory_id)))
        return pb.GetMemoryResponse(memory=types_pb2.Memory(text=text))

    async def ListMemories(  # noqa: N802
        self, request: pb.ListMemoriesRequest, context: Any
    ) -> pb.ListMemoriesResponse:
        """Says how many bytes the request had."""
        self._note_token(context)
        return pb.ListMemoriesResponse(next_page_token=str(request.ByteSize()))

    async def Watch(self, request: pb.WatchRequest, context: Any) -> AsyncIterator[pb.WatchResponse]:  # noqa: N802
        """Counts on from where the client is, and fails after some responses."""
        self.seen.opens += 1
        self.seen.resumed_from.append(request.start_after.token)
        after = int(request.start_after.token or 0)
        for number in range(after + 1, after + 1 + self.behaviour.checkpoints):
            revision = types_pb2.Revision(token=str(number))
            yield pb.WatchResponse(through=revision, checkpoint=True)
        await fail(context, "DRAINING", retry_ms=self.behaviour.retry_ms)

    async def Retrieve(self, request: pb.RetrieveRequest, context: Any) -> AsyncIterator[pb.RetrieveResponse]:  # noqa: N802
        """Gives one stage and then nothing more."""
        try:
            yield pb.RetrieveResponse(clusters=pb.ClusterSelection())
            await asyncio.Event().wait()
        finally:
            self.seen.cancelled += 1

    def __getattr__(self, name: str) -> Any:
        """The methods that no scenario asks for."""
        if not name[:1].isupper():
            raise AttributeError(name)

        async def refuse(_request: Any, context: Any) -> None:
            await fail(context, "NOT_IMPLEMENTED")

        return refuse

    def _note_token(self, context: Any) -> None:
        told = [str(value) for key, value in context.invocation_metadata() if key == "authorization"]
        self.seen.tokens += [token for token in told if token not in self.seen.tokens]


def _due(faults: list[int], position: int) -> bool:
    """Whether a fault is due by this position; those that are become past."""
    later = [one for one in faults if one > position]
    due = len(later) < len(faults)
    faults[:] = later
    return due


def _overhead(size: int) -> int:
    """Bytes around a text of GetMemoryResponse so that the whole message has `size` bytes."""
    return pb.GetMemoryResponse(memory=types_pb2.Memory(text="x" * size)).ByteSize() - size


@asynccontextmanager
async def serving(double: Double) -> AsyncIterator[dict[str, str]]:
    """Serve on a Unix socket and a TCP port; yields the addresses."""
    options = [
        ("grpc.max_receive_message_length", _MESSAGE_BYTES),
        ("grpc.max_send_message_length", _MESSAGE_BYTES),
        ("grpc.so_reuseport", 0),
    ]
    with tempfile.TemporaryDirectory(prefix="clag-") as folder:
        server = grpc.aio.server(options=options)
        add_MemoryServiceServicer_to_server(cast("MemoryServiceServicer", double), server)
        path = Path(folder) / "s"
        server.add_insecure_port(f"unix:{path}")
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield {"unix": f"unix:{path}", "path": str(path), "tcp": f"127.0.0.1:{port}", "token": "a-token"}
        finally:
            await server.stop(None)
