"""Puts a servicer on a gRPC server so that its handlers only ever see valid messages.

Requests are decoded by the strict classes (`pool`), checked against the rules of the schema (`violations`) and
refused as `InvalidField` before the handler runs; the edge's error table makes a status of that. Handlers
are annotated with the generated client classes, which have the same shape, and answer with them.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from clag_server.contract import pool
from clag_server.contract.decode import Malformed, Repaired, decoder
from clag_server.contract.violations import embedding_violation, violations
from clag_server.types.errors import FieldViolation, InvalidField

__all__ = [
    "FieldViolation",
    "Frame",
    "Malformed",
    "MalformedMessage",
    "Repaired",
    "checked",
    "checked_frame",
    "decoder",
    "embedding_violation",
    "register",
    "violations",
]

M = TypeVar("M", bound=Message)

Decoded: TypeAlias = Message | Malformed | Repaired[Message]
"""What a request deserializer returns."""

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_Unary: TypeAlias = Callable[[Any, _Context], Awaitable[Any]]
_Streaming: TypeAlias = Callable[[Any, _Context], AsyncIterator[Any]]

_NOTHING: Final[Mapping[int, tuple[FieldViolation, ...]]] = MappingProxyType({})


class MalformedMessage(InvalidField):
    """The request could not be decoded: not protobuf, or ill-formed UTF-8 in a string."""


@dataclass(frozen=True, slots=True)
class Frame(Generic[M]):
    """One client frame of a streaming call.

    Attributes:
        message: the frame, valid but for the items that are checked alone.
        blanked: items that could not be decoded, by index: they are empty in `message`, and this is why.
    """

    message: M
    blanked: Mapping[int, tuple[FieldViolation, ...]]


def register(server: grpc.aio.Server, servicer: object, service_name: str) -> None:
    """Serve all methods of a service of the contract.

    A method with one request gets a checked message. A method with a stream of requests gets an async
    iterator of `Frame`; a frame that breaks a rule raises `InvalidField` from the iterator.

    Args:
        server: not yet started.
        servicer: has one method for each of the service, by its name in the contract: a coroutine function or
            an async generator function, as grpc.aio has it.
        service_name: without the package, e.g. "MemoryService".

    Raises:
        KeyError: if the contract has no such service.
        AttributeError: if the servicer lacks a method.
    """
    service = pool.service(service_name)
    handlers = {method.name: _handler(method, getattr(servicer, method.name)) for method in service.methods}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))


def checked(decoded: Decoded) -> Message:
    """Return a decoded request if it keeps the rules.

    Raises:
        MalformedMessage: if it could not be decoded.
        InvalidField: if it breaks a rule.
    """
    if isinstance(decoded, Malformed):
        raise MalformedMessage(*decoded.violations)
    message = decoded.message if isinstance(decoded, Repaired) else decoded
    found = violations(message)
    if found:
        raise InvalidField(*found)
    return message


def checked_frame(decoded: Decoded) -> Frame[Message]:
    """Return a decoded frame if it keeps the rules; its items are not looked at.

    Raises:
        MalformedMessage: if it could not be decoded as a whole.
        InvalidField: if it breaks a rule.
    """
    blanked = decoded.blanked if isinstance(decoded, Repaired) else _NOTHING
    return Frame(checked(decoded), blanked)


def serialize(message: Message) -> bytes:
    """Serialize a response of whatever class."""
    return message.SerializeToString()


def _handler(method: MethodDescriptor, behaviour: Callable[..., Any]) -> grpc.RpcMethodHandler[Any, Any]:
    request_name = method.input_type.full_name
    wrapped = _streamed_in(behaviour) if method.client_streaming else _checked_in(behaviour)
    makers = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    make = cast("Callable[..., grpc.RpcMethodHandler[Any, Any]]", makers[_arity(method)])
    deserializer = decoder(request_name, repair=method.client_streaming)
    return make(wrapped, request_deserializer=deserializer, response_serializer=serialize)


def _arity(method: MethodDescriptor) -> tuple[bool, bool]:
    return method.client_streaming, method.server_streaming


def _checked_in(behaviour: Callable[..., Any]) -> _Unary | _Streaming:
    return _adapted(behaviour, checked)


def _streamed_in(behaviour: Callable[..., Any]) -> _Unary | _Streaming:
    return _adapted(behaviour, _Frames)


class _Frames(AsyncIterator[Frame[Message]]):
    """Checks frames as they are read. Not a generator: a cancelled read must not end the iteration."""

    def __init__(self, decoded: AsyncIterable[Decoded]) -> None:
        self._decoded = aiter(decoded)

    async def __anext__(self) -> Frame[Message]:
        return checked_frame(await anext(self._decoded))


def _adapted(behaviour: Callable[..., Any], convert: Callable[[Any], Any]) -> _Unary | _Streaming:
    """Convert the request before the handler sees it; the kind of function stays, as grpc.aio goes by it."""
    if inspect.isasyncgenfunction(behaviour):

        async def generate(request: object, context: _Context) -> AsyncIterator[Any]:
            # Without aclosing, a call that ends early would leave the handler's clean-up to the garbage collector.
            async with aclosing(behaviour(convert(request), context)) as responses:
                async for response in responses:
                    yield response

        return generate

    async def call(request: object, context: _Context) -> object:
        return await behaviour(convert(request), context)

    return call
