"""RetrieveStream at the edge: many tagged queries over one call, answered side by side and out of order.

A reader takes frames and starts a task for each query, a few of which work at the same time; one writer sends what
they yield, through a short queue. While the client does not read, the queue is full and the queries wait, so a slow
reader costs no more than the queries that it asked. What is wrong with a query is an error under its tag; what is
wrong with the stream itself (a tag that is in use, too many in flight, bytes that are no frame) ends it.

End of stream looks the same for half-close and crash: what is in flight is answered in any case, and gRPC cancels
this call when nobody is there any more.
"""

# ruff: noqa: N802 - methods have the names of the contract

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final, TypeAlias

from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2

from clag_server.api.convert_retrieve import query_from
from clag_server.api.convert_values import duration
from clag_server.api.errors import Failure, TooLarge, failure_of
from clag_server.api.facts import ServerFacts
from clag_server.api.interceptors.drain import DrainGate
from clag_server.api.interceptors.guard import Context
from clag_server.api.limits import MAX_QUERIES_IN_FLIGHT, MAX_QUERY_BYTES
from clag_server.api.retrieved import retrieved, time_left_s
from clag_server.contract.codec import Frame, violations
from clag_server.memory.service import MemoryService
from clag_server.types.errors import (
    ClagError,
    Draining,
    FieldViolation,
    InvalidField,
    WindowExceeded,
)

__all__ = ["RetrieveStreamCalls"]

_AT_ONCE: Final = 16
"""Queries of one stream that are worked on at the same time; more of them share the same cores."""

_QUEUED_FRAMES: Final = 4
"""Frames that wait for the writer."""

_DRAIN_S: Final = 2.0
"""How long a server that drains lets the queries in flight end, in seconds; most take milliseconds."""

_CANCELLED: Final = types_pb2.ItemError(
    reason=types_pb2.ERROR_REASON_CANCELLED, message="the query was cancelled by its caller"
)

_Frames: TypeAlias = AsyncIterator[Frame[Any]]


class TooManyInFlight(WindowExceeded):
    """One query more in flight than a stream may have."""

    def __init__(self, limit: int) -> None:
        ClagError.__init__(
            self, f"{limit} queries are in flight, more may not be; wait for the end of one before the next"
        )
        self.window = limit
        self.outstanding = limit + 1


class RetrieveStreamCalls:
    """The part of MemoryService that answers many queries over one stream."""

    _service: MemoryService
    _facts: ServerFacts
    _gate: DrainGate

    async def RetrieveStream(self, frames: _Frames, context: Context) -> None:
        """Answer tagged queries, several at a time and out of order."""
        await _StreamCall(frames, context, self._service, self._facts, self._gate).run()


class _StreamCall:
    """One call.

    Args:
        frames: The client's frames, each valid but for its query.
        context: The call.
        service: The domain.
        facts: The dimension of embeddings.
        gate: Says when the server drains.
    """

    def __init__(
        self, frames: _Frames, context: Context, service: MemoryService, facts: ServerFacts, gate: DrainGate
    ) -> None:
        self._frames = frames
        self._context = context
        self._service = service
        self._facts = facts
        self._gate = gate
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._in_flight: dict[str, asyncio.Task[None]] = {}
        self._out: asyncio.Queue[pb.RetrieveStreamResponse | None] = asyncio.Queue(_QUEUED_FRAMES)

    async def run(self) -> None:
        """Serve the call until the client has asked and heard everything, or the server drains.

        Raises:
            Draining: The server drains; what could be answered in a moment was.
            InvalidField: A frame or its tag is wrong.
            TooManyInFlight: The client asks more than it may.
        """
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(self._write())
            reading = group.create_task(self._read(group))
            draining = group.create_task(self._gate.drained())
            await self._out.put(
                pb.RetrieveStreamResponse(limits=pb.RetrieveStreamLimits(max_in_flight=MAX_QUERIES_IN_FLIGHT))
            )
            await asyncio.wait((reading, draining), return_when=asyncio.FIRST_COMPLETED)
            while self._in_flight and not draining.done():
                await asyncio.wait((draining, *self._in_flight.values()), return_when=asyncio.FIRST_COMPLETED)
            if draining.done():
                await self._end_soon(reading, writing)
            draining.cancel()
            await self._out.put(None)

    async def _end_soon(self, reading: asyncio.Task[None], writing: asyncio.Task[None]) -> None:
        """Take no more queries, and give those in flight a moment.

        Raises:
            Draining: Unless the client has heard all that it wanted.
        """
        half_closed = reading.done()
        reading.cancel()
        if self._in_flight:
            await asyncio.wait(self._in_flight.values(), timeout=_DRAIN_S)
        if half_closed and not self._in_flight:
            return
        # What was answered is sent before the status, unless nobody reads it.
        closing = asyncio.create_task(self._out.put(None))
        await asyncio.wait((writing,), timeout=_DRAIN_S)
        closing.cancel()
        raise Draining

    async def _read(self, group: asyncio.TaskGroup) -> None:
        async for frame in self._frames:
            message = frame.message
            if message.WhichOneof("action") == "cancel":
                await self._forget(message.query_id)
            else:
                self._start(message.query_id, frame, group)

    def _start(self, query_id: str, frame: Frame[Any], group: asyncio.TaskGroup) -> None:
        if query_id in self._in_flight:
            raise InvalidField(FieldViolation("query_id", "is that of a query in flight; use another"))
        if len(self._in_flight) >= MAX_QUERIES_IN_FLIGHT:
            raise TooManyInFlight(MAX_QUERIES_IN_FLIGHT)
        task = group.create_task(self._answer(query_id, frame))
        self._in_flight[query_id] = task
        task.add_done_callback(lambda _: self._in_flight.pop(query_id, None))

    async def _forget(self, query_id: str) -> None:
        """Cancel a query; one that is not in flight is done already."""
        task = self._in_flight.get(query_id)
        if task is None:
            return
        task.cancel()
        await asyncio.wait((task,))
        if task.cancelled():
            await self._out.put(pb.RetrieveStreamResponse(query_id=query_id, error=_CANCELLED))

    async def _answer(self, query_id: str, frame: Frame[Any]) -> None:
        """Put the frames of one query into the queue; the last one is its end or its error."""
        try:
            request = _checked(frame)
            async with self._turns:
                query = query_from(
                    request,
                    dim=self._facts.embedding_dim(),
                    deadline_s=time_left_s(self._context, self._facts),
                )
                async with aclosing(retrieved(self._service, query)) as stages:
                    async for stage in stages:
                        await self._out.put(_tagged(query_id, stage))
        except Exception as error:  # noqa: BLE001 - nothing is swallowed: it is the query's error, and logged if ours
            await self._out.put(pb.RetrieveStreamResponse(query_id=query_id, error=_item_error(failure_of(error))))

    async def _write(self) -> None:
        """Send frames one at a time, at the client's pace."""
        while (frame := await self._out.get()) is not None:
            await self._context.write(frame)


def _checked(frame: Frame[Any]) -> Any:
    """Return the query of a frame if it keeps the rules. Raises InvalidField, TooLarge."""
    request = frame.message.retrieve
    if (size := request.ByteSize()) > MAX_QUERY_BYTES:
        raise TooLarge("the query", size=size, limit=MAX_QUERY_BYTES, advice="ask with a smaller filter")
    found = frame.blanked.get(0, ()) or violations(request)
    if found:
        raise InvalidField(*found)
    return request


def _tagged(query_id: str, stage: pb.RetrieveResponse) -> pb.RetrieveStreamResponse:
    match stage.WhichOneof("stage"):
        case "clusters":
            return pb.RetrieveStreamResponse(query_id=query_id, clusters=stage.clusters)
        case "memories":
            return pb.RetrieveStreamResponse(query_id=query_id, memories=stage.memories)
        case "context":
            return pb.RetrieveStreamResponse(query_id=query_id, context=stage.context)
        case _:
            return pb.RetrieveStreamResponse(query_id=query_id, done=stage.done)


def _item_error(failure: Failure) -> types_pb2.ItemError:
    return types_pb2.ItemError(
        reason=failure.reason,
        field=failure.violations[0].field if failure.violations else "",
        message=failure.message,
        retry_after=None if failure.retry_after_s is None else duration(failure.retry_after_s),
    )
