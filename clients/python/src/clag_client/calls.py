"""Calls with one answer, with the client's metadata, deadline and errors."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, TypeVar, cast

import grpc

from clag_client.errors import from_rpc

__all__ = ["UnaryCalls"]

T = TypeVar("T")


class UnaryCalls:
    """What the parts of `AsyncClient` share, which sets the attributes.

    Attributes:
        metadata: goes with every call.
    """

    metadata: tuple[tuple[str, str], ...]
    _timeout_s: float

    async def _unary(
        self, method: grpc.aio.UnaryUnaryMultiCallable[Any, T], request: object, timeout_s: float | None
    ) -> T:
        call = method(request, timeout=timeout_s or self._timeout_s, metadata=self.metadata)
        try:
            return await cast("Awaitable[T]", call)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error) from None
