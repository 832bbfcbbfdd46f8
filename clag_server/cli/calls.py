"""Calls that the client has no method for, with its errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar, cast

import grpc
from clag_client import AsyncClient
from clag_client.errors import from_rpc

__all__ = ["call", "responses"]

T = TypeVar("T")


async def call(
    client: AsyncClient, method: grpc.aio.UnaryUnaryMultiCallable[Any, T], request: object, timeout_s: float
) -> T:
    """Make a call with one answer.

    Args:
        client: Whose connection and token are used.
        method: Of one of the client's stubs.
        request: The request.
        timeout_s: Longest wait in seconds.

    Raises:
        ClagError: The call failed.
    """
    running = method(request, timeout=timeout_s, metadata=client.metadata)
    try:
        return await cast("Awaitable[T]", running)
    except grpc.aio.AioRpcError as error:
        raise from_rpc(error) from None


async def responses(
    client: AsyncClient, method: grpc.aio.UnaryStreamMultiCallable[Any, T], request: object
) -> AsyncIterator[T]:
    """Yield the answers of a call until it ends, however long that takes. Raises ClagError."""
    running = method(request, metadata=client.metadata)
    try:
        async for answer in running:
            yield answer
    except grpc.aio.AioRpcError as error:
        raise from_rpc(error) from None
    finally:
        running.cancel()
