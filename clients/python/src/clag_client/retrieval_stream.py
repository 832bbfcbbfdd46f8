"""Many questions over one call: asked one after the other, answered side by side and out of order."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

import grpc
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2

from clag_client.errors import ClagError, FieldViolation
from clag_client.first_status import FirstStatus
from clag_client.values import RetrieveOptions, retrieve_request

if TYPE_CHECKING:
    from clag.v1.memory_service_pb2_grpc import MemoryServiceAsyncStub  # exists for type checkers only

__all__ = ["PendingQuery", "RetrievalStream"]

_CODES: Final = {
    types_pb2.ERROR_REASON_INVALID_FIELD: grpc.StatusCode.INVALID_ARGUMENT,
    types_pb2.ERROR_REASON_MALFORMED_MESSAGE: grpc.StatusCode.INVALID_ARGUMENT,
    types_pb2.ERROR_REASON_EMBEDDING_SHAPE: grpc.StatusCode.INVALID_ARGUMENT,
    types_pb2.ERROR_REASON_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    types_pb2.ERROR_REASON_NAMESPACE_DELETED: grpc.StatusCode.NOT_FOUND,
    types_pb2.ERROR_REASON_MODEL_MISMATCH: grpc.StatusCode.FAILED_PRECONDITION,
    types_pb2.ERROR_REASON_MESSAGE_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    types_pb2.ERROR_REASON_OVERLOADED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    types_pb2.ERROR_REASON_MODEL_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    types_pb2.ERROR_REASON_STORAGE_DEGRADED: grpc.StatusCode.UNAVAILABLE,
    types_pb2.ERROR_REASON_DRAINING: grpc.StatusCode.UNAVAILABLE,
    types_pb2.ERROR_REASON_DEADLINE: grpc.StatusCode.DEADLINE_EXCEEDED,
    types_pb2.ERROR_REASON_CANCELLED: grpc.StatusCode.CANCELLED,
    types_pb2.ERROR_REASON_INTERNAL: grpc.StatusCode.INTERNAL,
}
"""Status codes of the reasons that a query can fail with, as `clag.v1.ErrorReason` has them."""


class PendingQuery:
    """A question that was asked: an async iterator of its stages, as `AsyncClient.retrieve` gives them.

    Attributes:
        query_id: its tag.
    """

    def __init__(self, query_id: str, stream: RetrievalStream) -> None:
        self.query_id = query_id
        self._stream = stream
        self._stages: asyncio.Queue[pb.RetrieveResponse | ClagError] = asyncio.Queue()
        self._ended = False

    def __aiter__(self) -> AsyncIterator[pb.RetrieveResponse]:
        return self

    async def __anext__(self) -> pb.RetrieveResponse:
        """Return the next stage. Raises ClagError where the query or the stream failed."""
        if self._ended:
            raise StopAsyncIteration
        stage = await self._stages.get()
        if isinstance(stage, ClagError):
            self._ended = True
            raise stage
        self._ended = stage.HasField("done")
        return stage

    async def result(self) -> pb.GetContextResponse:
        """Wait for all stages and return them in one. Raises ClagError."""
        whole = pb.GetContextResponse()
        async for stage in self:
            kind = stage.WhichOneof("stage")
            if kind is not None:
                getattr(whole, kind).MergeFrom(getattr(stage, kind))
        return whole

    async def cancel(self) -> None:
        """Ask the server to forget it; it ends with a ClagError (CANCELLED), unless it is done already."""
        if not self._ended:
            await self._stream._cancel(self.query_id)  # noqa: SLF001  # the two are one thing in two classes

    def _hear(self, stage: pb.RetrieveResponse | ClagError) -> None:
        self._stages.put_nowait(stage)


class RetrievalStream:
    """A RetrieveStream call; use as an async context manager. Leaving it early cancels what is in flight.

    `ask` returns as soon as the question is sent; with as many in flight as the server takes, it waits for the end
    of one. When the stream ends, every question in flight raises why.
    """

    def __init__(
        self, stub: MemoryServiceAsyncStub, *, metadata: tuple[tuple[str, str], ...], timeout_s: float | None
    ) -> None:
        self._call: Any = stub.RetrieveStream(timeout=timeout_s, metadata=metadata)
        self._status = FirstStatus(self._call)
        self._in_flight: dict[str, PendingQuery] = {}
        self._numbers = itertools.count(1)
        self._slots: asyncio.Semaphore | None = None
        self._opened = asyncio.Event()
        self._writing = asyncio.Lock()
        self._failure: ClagError | None = None
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._reader = asyncio.create_task(self._read(), name="clag retrieval stream")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call.cancel()
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    async def ask(
        self, namespace: str, query: str | Sequence[float], **options: Unpack[RetrieveOptions]
    ) -> PendingQuery:
        """Send a question; options as those of `AsyncClient.retrieve`. Raises ClagError when the stream ended."""
        request = retrieve_request(namespace, query, options)  # first: what cannot be sent takes no place
        await self._opened.wait()
        if self._slots is not None:
            await self._slots.acquire()
        pending = PendingQuery(str(next(self._numbers)), self)
        self._in_flight[pending.query_id] = pending
        sent = False
        try:
            async with self._writing:
                sent = True  # from here on it may be on its way, and its end gives its place back
                await self._send(pb.RetrieveStreamRequest(query_id=pending.query_id, retrieve=request))
        except ClagError:
            sent = False
            raise
        finally:
            if not sent:
                self._release(pending.query_id)
        return pending

    async def done_asking(self) -> None:
        """Tell the server that no question follows; those in flight are still answered."""
        await self._opened.wait()
        async with self._writing:
            if self._failure is None:
                await self._call.done_writing()

    async def _cancel(self, query_id: str) -> None:
        async with self._writing:
            if query_id in self._in_flight:
                await self._send(pb.RetrieveStreamRequest(query_id=query_id, cancel=pb.CancelQuery()))

    async def _send(self, frame: pb.RetrieveStreamRequest) -> None:
        """Write a frame, with the lock held. Raises ClagError when the stream has ended."""
        if self._failure is not None:
            raise self._failure
        # A write that is cancelled would cancel the whole call, and with it the questions of others.
        writing = asyncio.ensure_future(self._call.write(frame))
        try:
            await asyncio.shield(writing)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            if self._reader is not None:
                await asyncio.wait((self._reader,))  # it hears why the stream ended
            raise self._failure or _ended() from None
        except asyncio.CancelledError:
            await asyncio.wait((writing,))
            raise

    async def _read(self) -> None:
        failure = _ended()
        try:
            async for frame in self._call:
                self._take(frame)
        except grpc.aio.AioRpcError as error:
            failure = await self._status.told(error)
        finally:
            self._failure = failure
            self._opened.set()
            for query_id in list(self._in_flight):
                self._in_flight[query_id]._hear(failure)  # noqa: SLF001
                self._release(query_id)

    def _take(self, frame: pb.RetrieveStreamResponse) -> None:
        kind = frame.WhichOneof("stage")
        if kind == "limits":
            self._slots = asyncio.Semaphore(max(frame.limits.max_in_flight, 1))
            self._opened.set()
            return
        pending = self._in_flight.get(frame.query_id)
        if pending is None or kind is None:
            return  # a stage that a newer server knows
        if kind == "error":
            pending._hear(_query_failed(frame.error))  # noqa: SLF001
        else:
            stage = pb.RetrieveResponse()
            getattr(stage, kind).CopyFrom(getattr(frame, kind))
            pending._hear(stage)  # noqa: SLF001
        if kind in ("error", "done"):
            self._release(frame.query_id)

    def _release(self, query_id: str) -> None:
        if self._in_flight.pop(query_id, None) is not None and self._slots is not None:
            self._slots.release()


def _query_failed(error: types_pb2.ItemError) -> ClagError:
    """Return a query's own failure as that of a call of its own."""
    retry_after_s = error.retry_after.ToNanoseconds() / 1e9 if error.HasField("retry_after") else None
    return ClagError(
        _CODES.get(error.reason, grpc.StatusCode.UNKNOWN),
        error.message,
        reason=error.reason,
        violations=[FieldViolation(error.field, error.message)] if error.field else (),
        retry_after_s=retry_after_s,
    )


def _ended() -> ClagError:
    return ClagError(grpc.StatusCode.UNAVAILABLE, "the stream has ended")
