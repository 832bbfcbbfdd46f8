"""Any call of the contract, with the client's metadata, deadline and errors; part of `AsyncClient`."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, TypeVar, cast

import grpc

from clag_client.closing import closing_told
from clag_client.errors import from_rpc
from clag_client.first_status import FirstStatus

__all__ = ["StreamMethod", "UnaryCalls", "UnaryMethod"]

T = TypeVar("T")

UnaryMethod: TypeAlias = "grpc.aio.UnaryUnaryMultiCallable[Any, T]"
"""A method of a generated stub with one answer, e.g. `client.memory.GetMemory`."""

StreamMethod: TypeAlias = "grpc.aio.UnaryStreamMultiCallable[Any, T] | grpc.aio.StreamStreamMultiCallable[Any, T]"
"""A method of a generated stub with many answers, e.g. `client.admin.Import`."""


class UnaryCalls:
    """What the parts of `AsyncClient` share, which sets the attributes.

    Attributes:
        metadata: goes with every call.
    """

    metadata: tuple[tuple[str, str], ...]
    _timeout_s: float

    async def call(self, method: UnaryMethod[T], request: object, *, timeout_s: float | None = None) -> T:
        """Make a call that has no method of its own here: `await client.call(client.memory.UpdateMemory, request)`.

        Args:
            method: of one of the stubs `memory`, `clusters` and `admin`.
            request: the message that it takes.
            timeout_s: deadline, in seconds; None is the client's.

        Raises:
            ClagError: if it fails.
        """
        return await self._unary(method, request, timeout_s)

    @asynccontextmanager
    async def call_stream(
        self,
        method: StreamMethod[T],
        request: object | Iterable[object] | AsyncIterable[object],
        *,
        timeout_s: float | None = None,
    ) -> AsyncIterator[AsyncIterator[T]]:
        """Make a call with many answers that has no method of its own here. Leaving the context cancels it.

        Args:
            method: of one of the stubs `memory`, `clusters` and `admin`.
            request: the message that it takes, or an iterable of them where it takes many.
            timeout_s: deadline of the whole call, in seconds; None for none.

        Yields:
            An iterator of answers. It raises `ClagError` when the call fails.
        """
        call = method(cast("Any", request), timeout=timeout_s, metadata=self.metadata)
        status = FirstStatus(call)
        try:
            yield _answers(call, status)
        finally:
            call.cancel()

    async def _unary(self, method: UnaryMethod[T], request: object, timeout_s: float | None) -> T:
        call = method(request, timeout=timeout_s or self._timeout_s, metadata=self.metadata)
        try:
            with closing_told():
                return await cast("Awaitable[T]", call)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error) from None


async def _answers(
    call: grpc.aio.UnaryStreamCall[Any, T] | grpc.aio.StreamStreamCall[Any, T], status: FirstStatus
) -> AsyncIterator[T]:
    try:
        with closing_told():
            async for answer in call:
                yield answer
    except grpc.aio.AioRpcError as error:
        raise await status.told(error) from None
