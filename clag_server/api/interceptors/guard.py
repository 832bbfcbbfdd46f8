"""One way to put something around a call, whatever its kind: an async context manager.

Streams are run in the coroutine style (`context.write`), never as async generators: gRPC does not close an
abandoned generator, so the clean-up of a cancelled stream would wait for the garbage collector.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import grpc

__all__ = ["INFRASTRUCTURE", "Call", "Context", "Guard", "GuardInterceptor"]

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

INFRASTRUCTURE = ("/grpc.health.v1.Health/", "/grpc.reflection.")
"""Methods that watch the server rather than use it."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call: its full method name, its context, and whether any side of it is a stream."""

    method: str
    context: Context
    streaming: bool

    @property
    def infrastructure(self) -> bool:
        """Whether it is a health check or reflection."""
        return self.method.startswith(INFRASTRUCTURE)


class Guard(Protocol):
    """Something around every call."""

    def around(self, call: Call) -> AbstractAsyncContextManager[None]:
        """Enter before the handler, leave after it; exceptions of the handler pass through."""


class GuardInterceptor(grpc.aio.ServerInterceptor):
    """Puts a guard around every call."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wrap the handler of the method."""
        handler: Any = await continuation(handler_call_details)
        if handler is None:  # an unknown method: gRPC answers UNIMPLEMENTED
            return None
        method = str(handler_call_details.method)
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(
                self._unary(handler.unary_unary, method, streaming=False),
                handler.request_deserializer,
                handler.response_serializer,
            )
        if handler.stream_unary is not None:
            return grpc.stream_unary_rpc_method_handler(
                self._unary(handler.stream_unary, method, streaming=True),
                handler.request_deserializer,
                handler.response_serializer,
            )
        make = (
            grpc.unary_stream_rpc_method_handler
            if handler.unary_stream is not None
            else grpc.stream_stream_rpc_method_handler
        )
        behaviour = handler.unary_stream or handler.stream_stream
        return make(self._stream(behaviour, method), handler.request_deserializer, handler.response_serializer)

    def _unary(self, behaviour: Callable[..., Any], method: str, *, streaming: bool) -> Callable[..., Any]:
        async def call(request: object, context: Context) -> object:
            async with self._guard.around(Call(method, context, streaming)):
                return await behaviour(request, context)

        return call

    def _stream(self, behaviour: Callable[..., Any], method: str) -> Callable[..., Any]:
        async def call(request: object, context: Context) -> None:
            async with self._guard.around(Call(method, context, streaming=True)):
                if inspect.isasyncgenfunction(behaviour):
                    responses: AsyncIterator[object] = behaviour(request, context)
                    async with aclosing(responses) as open_responses:  # type: ignore[type-var]
                        async for response in open_responses:
                            await context.write(response)
                else:
                    await behaviour(request, context)

        return call
