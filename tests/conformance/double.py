"""A scripted server in the driver, where the client is looked at: credits, frames, resuming, errors, limits.

It keeps the streaming rules of the contract, notes what breaks them, and fails where a scenario says so.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import grpc
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from clag.v1.memory_service_pb2_grpc import MemoryServiceServicer, add_MemoryServiceServicer_to_server
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

__all__ = ["CODES", "Behaviour", "Double", "serving"]

MAX_FRAME_ITEMS: Final = 64
MAX_FRAME_BYTES: Final = 1024 * 1024
_MESSAGE_BYTES: Final = 64 * 1024 * 1024

_Code = grpc.StatusCode
CODES: Final = {
    "INVALID_FIELD": _Code.INVALID_ARGUMENT,
    "MALFORMED_MESSAGE": _Code.INVALID_ARGUMENT,
    "NOT_FOUND": _Code.NOT_FOUND,
    "ALREADY_EXISTS": _Code.ALREADY_EXISTS,
    "ETAG_MISMATCH": _Code.ABORTED,
    "REQUEST_ID_REUSED": _Code.INVALID_ARGUMENT,
    "STREAM_FENCED": _Code.ABORTED,
    "SEQUENCE_GAP": _Code.OUT_OF_RANGE,
    "WINDOW_EXCEEDED": _Code.RESOURCE_EXHAUSTED,
    "FRAME_ORDER": _Code.FAILED_PRECONDITION,
    "WATCH_COMPACTED": _Code.OUT_OF_RANGE,
    "PAGE_TOKEN_MISMATCH": _Code.INVALID_ARGUMENT,
    "OVERLOADED": _Code.RESOURCE_EXHAUSTED,
    "MODEL_UNAVAILABLE": _Code.UNAVAILABLE,
    "MODEL_MISMATCH": _Code.FAILED_PRECONDITION,
    "DRAINING": _Code.UNAVAILABLE,
    "UNAUTHENTICATED": _Code.UNAUTHENTICATED,
    "PERMISSION_DENIED": _Code.PERMISSION_DENIED,
    "NAMESPACE_LIMIT": _Code.RESOURCE_EXHAUSTED,
    "NAMESPACE_DELETED": _Code.NOT_FOUND,
    "STORAGE_DEGRADED": _Code.UNAVAILABLE,
    "NOT_IMPLEMENTED": _Code.UNIMPLEMENTED,
    "MESSAGE_TOO_LARGE": _Code.RESOURCE_EXHAUSTED,
    "INTERNAL": _Code.INTERNAL,
    "OWNERSHIP": _Code.FAILED_PRECONDITION,
    "DEADLINE": _Code.DEADLINE_EXCEEDED,
    "OPERATION_RUNNING": _Code.FAILED_PRECONDITION,
    "CLUSTER_STATE": _Code.FAILED_PRECONDITION,
    "QUARANTINED": _Code.INTERNAL,
    "EMBEDDING_SHAPE": _Code.INVALID_ARGUMENT,
    "CANCELLED": _Code.CANCELLED,
}
"""Every reason of the contract and its code, as its comments have them."""


@dataclass
class Behaviour:
    """What the double does.

    Attributes:
        windows: credit windows: of `opened`, then of each acknowledgement in turn; the last one stays.
        ack_delay_ms: how long each acknowledgement is held back.
        again_after_ms: where a window is 0: the acknowledgement comes again after so long with the next window.
        lag: items that are durable and not yet acknowledged, at most.
        hold: whether acknowledgements wait until a scenario releases them.
        cut_after: numbers of stored items at which the connection fails, before their acknowledgement, each once.
        cut_code: the code that it fails with.
        retry_ms: the wait that the failure asks for; None for none.
        end_quietly_after: numbers of stored items at which the stream ends as if all were well, each once.
        fence_opens: how many opens from the first are answered with STREAM_FENCED.
        refuse_opens: how many opens from the first fail with UNAVAILABLE.
        level: the level that outcomes report.
        checkpoints: responses of a watch before its connection fails.
    """

    windows: list[int] = field(default_factory=lambda: [1024])
    ack_delay_ms: int = 0
    again_after_ms: int = 300
    lag: int = 0
    hold: bool = False
    cut_after: list[int] = field(default_factory=list)
    cut_code: str = "UNAVAILABLE"
    retry_ms: int | None = None
    end_quietly_after: list[int] = field(default_factory=list)
    fence_opens: int = 0
    refuse_opens: int = 0
    level: str = "DURABLE"
    checkpoints: int = 3


@dataclass
class Seen:
    """What the double saw of the client.

    Attributes:
        opens: streams opened.
        items: items received, in all.
        stored: texts by stream.
        frames: batches received.
        max_frame_items: items of the largest.
        max_frame_bytes: bytes of the largest.
        max_in_flight: most items that were received and not yet acknowledged.
        sent_again: items received again that were durable, and known to be so by the client.
        broken: rules that were broken, in sentences.
        tokens: what the metadata `authorization` said, once each.
        cancelled: calls that the client gave up.
        resumed_from: positions that watches asked to go on after.
    """

    opens: int = 0
    items: int = 0
    stored: dict[str, list[str]] = field(default_factory=dict)
    frames: int = 0
    max_frame_items: int = 0
    max_frame_bytes: int = 0
    max_in_flight: int = 0
    sent_again: int = 0
    broken: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    cancelled: int = 0
    resumed_from: list[str] = field(default_factory=list)


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
        stream = _Stream(self, self.seen.stored.setdefault(opening.stream_id, []))
        yield stream.opened()
        async for request in requests:
            match request.WhichOneof("frame"):
                case "batch":
                    stream.take(request)
                    if stream.position in self.behaviour.end_quietly_after:
                        self.behaviour.end_quietly_after.remove(stream.position)
                        return
                    if stream.position in self.behaviour.cut_after:
                        self.behaviour.cut_after.remove(stream.position)
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


class _Stream:
    """One connection of a stream: its credit and its position."""

    def __init__(self, double: Double, texts: list[str]) -> None:
        self._behaviour = double.behaviour
        self._seen = double.seen
        self._texts = texts
        self._windows = iter(double.behaviour.windows)
        self._next_window()
        self._acked = len(texts)
        self._told_durable = len(texts)
        self._allowed = self._acked + self.window
        self._reported = len(texts)

    @property
    def position(self) -> int:
        return len(self._texts)

    def opened(self) -> pb.IngestResponse:
        opened = pb.IngestOpened(
            next_seq=self.position + 1,
            window_items=self.window,
            max_batch_items=256,
            max_batch_bytes=MAX_FRAME_BYTES,
            max_text_bytes=32_768,
        )
        return pb.IngestResponse(opened=opened)

    def take(self, request: pb.IngestRequest) -> None:
        batch, seen = request.batch, self._seen
        last = batch.first_seq + len(batch.items) - 1
        seen.frames += 1
        seen.items += len(batch.items)
        seen.max_frame_items = max(seen.max_frame_items, len(batch.items))
        seen.max_frame_bytes = max(seen.max_frame_bytes, request.ByteSize())
        seen.max_in_flight = max(seen.max_in_flight, last - self._acked)
        if not batch.items:
            seen.broken.append("a frame without items")
        if len(batch.items) > MAX_FRAME_ITEMS:
            seen.broken.append(f"a frame of {len(batch.items)} items")
        if request.ByteSize() > MAX_FRAME_BYTES:
            seen.broken.append(f"a frame of {request.ByteSize()} bytes")
        if last > self._allowed:
            seen.broken.append(f"item {last} was sent, credit reaches to {self._allowed}")
        if batch.first_seq > self.position + 1:
            seen.broken.append(f"item {batch.first_seq} follows {self.position}")
        for seq, item in enumerate(batch.items, start=batch.first_seq):
            if seq > self.position:
                self._texts.append(item.text)
            elif seq <= self._told_durable:
                seen.sent_again += 1

    def ack(self) -> pb.IngestResponse:
        self._next_window()
        self._acked = max(self._acked, self.position - self._behaviour.lag)
        # Credit that was given is not taken back from what is on its way.
        self._allowed = max(self._allowed, self._acked + self.window)
        self._told_durable = self.position
        level = pb.AckLevel.Value(f"ACK_LEVEL_{self._behaviour.level}")
        results = [
            pb.IngestResult(
                seq=seq,
                disposition=pb.DISPOSITION_CREATED,
                level=level,
                memory_id=f"m-{seq}",
                state=types_pb2.MEMORY_STATE_STORED,
            )
            for seq in range(self._reported + 1, self.position + 1)
        ]
        self._reported = self.position
        ack = pb.IngestAck(
            acked_through=self._acked, durable_through=self.position, window_items=self.window, results=results
        )
        return pb.IngestResponse(ack=ack)

    def finished(self) -> pb.IngestResponse:
        return pb.IngestResponse(finished=pb.IngestFinished(created=self.position))

    def _next_window(self) -> None:
        self.window = next(self._windows, getattr(self, "window", 1))


async def fail(context: Any, reason: str, *, code: str = "", retry_ms: int | None = None, field: str = "") -> None:
    """End a call with the details that the contract promises."""
    details: list[Any] = [
        error_details_pb2.ErrorInfo(reason=f"ERROR_REASON_{reason}", domain="clag", metadata={"fact": "told"})
    ]
    if field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=field, description="is wrong")
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if retry_ms is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(retry_ms)
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    packed = []
    for detail in details:
        packed.append(any_pb2.Any())
        packed[-1].Pack(detail)
    status_code = grpc.StatusCode[code] if code else CODES.get(reason, _Code.UNKNOWN)
    message = f"failed with {reason}, größer als 猫"
    status = status_pb2.Status(code=status_code.value[0], message=message, details=packed)
    await context.abort(status_code, message, (("grpc-status-details-bin", status.SerializeToString()),))


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
