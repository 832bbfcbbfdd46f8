"""What ends a call: errors of handlers become statuses, and a caller that left is no fault of the server."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
import structlog

from clag_server.api.interceptors.errors import ErrorGuard
from clag_server.api.interceptors.guard import Call


class Aborted(Exception):
    """Stands in for what gRPC raises when a call is ended."""


class CallContext:
    """A call's context that only can be aborted."""

    async def abort(self, code: grpc.StatusCode, _message: str, _trailers: object) -> None:
        raise Aborted(code.name)


async def ended_by(error: BaseException) -> BaseException:
    """What leaves the guard when a handler raises the error."""
    context: Any = CallContext()
    with pytest.raises(BaseException) as left:
        async with ErrorGuard().around(Call("/clag.v1.MemoryService/Ingest", context, streaming=True)):
            raise error
    return left.value


@pytest.mark.parametrize("grouped", [False, True])
async def test_a_caller_that_left_while_a_frame_was_written_is_no_incident(grouped: bool) -> None:
    broken = grpc.aio.InternalError("the frame was not sent")
    with structlog.testing.capture_logs() as logged:
        left = await ended_by(ExceptionGroup("tasks", [broken]) if grouped else broken)
    assert left is broken
    assert logged == []


async def test_a_fault_of_a_handler_is_an_incident_in_the_log() -> None:
    with structlog.testing.capture_logs() as logged:
        left = await ended_by(ExceptionGroup("tasks", [RuntimeError("a fault")]))
    assert (type(left), str(left)) == (Aborted, "INTERNAL")
    assert [one["event"] for one in logged] == ["call failed"]


async def test_a_cancellation_passes_through() -> None:
    assert isinstance(await ended_by(asyncio.CancelledError()), asyncio.CancelledError)
