"""What both faces of the Python runner share: messages, methods, items, errors as the line protocol writes them."""

from __future__ import annotations

import base64
import concurrent.futures
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import grpc
from clag.v1 import admin_service_pb2, cluster_service_pb2, memory_service_pb2, types_pb2
from clag_client import ClagError, Outcome, SourceError, Tls
from clag_client.values import RetrieveOptions
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

__all__ = [
    "Json",
    "Method",
    "decoded",
    "encoded",
    "error_of",
    "event_of",
    "items_of",
    "method_of",
    "options_of",
    "query_of",
    "roundtrip",
    "tls_of",
]

Json: TypeAlias = dict[str, Any]

_STUBS: Final = {"MemoryService": "memory", "ClusterService": "clusters", "AdminService": "admin"}
_POOL: Final = descriptor_pool.Default()
# The descriptors are in the pool once their modules are imported.
_FILES: Final = (admin_service_pb2, cluster_service_pb2, memory_service_pb2, types_pb2)


@dataclass(frozen=True, slots=True)
class Method:
    """A method of the contract: where its stub is, what it takes, how many of it."""

    stub: str
    name: str
    request: type[Message]
    many_requests: bool
    many_responses: bool


def method_of(path: str) -> Method:
    """Find "clag.v1.MemoryService/GetMemory". Raises KeyError when there is no such method."""
    service, _, name = path.partition("/")
    found = _POOL.FindServiceByName(service).methods_by_name[name]
    return Method(
        stub=_STUBS[service.rpartition(".")[2]],
        name=name,
        request=message_factory.GetMessageClass(found.input_type),
        many_requests=found.client_streaming,
        many_responses=found.server_streaming,
    )


def decoded(data: str, kind: type[Message]) -> Any:
    """Read a message from base64."""
    return kind.FromString(base64.b64decode(data, validate=True))


def encoded(message: Message) -> str:
    """Write a message as base64."""
    return base64.b64encode(message.SerializeToString()).decode("ascii")


def roundtrip(type_name: str, data: str) -> str:
    """Decode and encode by the generated class."""
    return encoded(decoded(data, message_factory.GetMessageClass(_POOL.FindMessageTypeByName(type_name))))


def items_of(command: Mapping[str, Any]) -> Iterator[types_pb2.MemoryInput]:
    """Yield the items of an `ingest` command."""
    generate = command.get("generate")
    if generate is None:
        for item in command["items"]:
            yield decoded(item, types_pb2.MemoryInput)
        return
    session = generate.get("session_id", "")
    for number in range(1, int(generate["count"]) + 1):
        yield types_pb2.MemoryInput(
            text=generate["text"].replace("{n}", str(number)),
            memory_id=generate.get("memory_id", "").replace("{n}", str(number)),
            session_id=session,
        )


def query_of(request: memory_service_pb2.RetrieveRequest) -> str | list[float]:
    """The query of a retrieval, as the client takes it."""
    return list(request.query.embedding) or request.query.text


def options_of(request: memory_service_pb2.RetrieveRequest) -> RetrieveOptions:
    """The options of a retrieval, as the client takes them."""
    given = {field.name: value for field, value in request.ListFields()}
    del given["namespace"], given["query"]
    return cast("RetrieveOptions", given)  # the fields are named alike


def tls_of(command: Mapping[str, Any]) -> Tls | None:
    """The keys and certificates of a `connect` command."""
    given = command.get("tls")
    if given is None:
        return None
    ca, certificate, key = (
        given[name].encode("ascii") if name in given else None for name in ("ca", "certificate", "key")
    )
    return Tls(root_certificates=ca, certificate_chain=certificate, private_key=key)


def event_of(outcome: Outcome) -> Json:
    """An outcome, as the protocol writes it."""
    disposition = memory_service_pb2.Disposition.Name(outcome.disposition).removeprefix("DISPOSITION_")
    event: Json = {
        "seq": outcome.seq,
        "disposition": disposition,
        "memory_id": outcome.memory_id,
        "state": types_pb2.MemoryState.Name(outcome.state).removeprefix("MEMORY_STATE_"),
        "final": outcome.final,
    }
    if outcome.error is not None:
        reason = types_pb2.ErrorReason.Name(outcome.error.reason).removeprefix("ERROR_REASON_")
        event["error"] = {"reason": reason, "field": outcome.error.field, "message": outcome.error.message}
    return event


def error_of(error: BaseException) -> Json:
    """An error as a user of the client sees it."""
    if isinstance(error, SourceError) and error.__cause__ is not None:
        return error_of(error.__cause__)
    if isinstance(error, ClagError):
        return _clag_error(error)
    if isinstance(error, TimeoutError):
        return _plain(grpc.StatusCode.DEADLINE_EXCEEDED, error)
    if isinstance(error, concurrent.futures.CancelledError):
        return _plain(grpc.StatusCode.CANCELLED, error)
    if isinstance(error, NotImplementedError):
        return _plain(grpc.StatusCode.UNIMPLEMENTED, error)
    if isinstance(error, (ValueError, TypeError, DecodeError)):
        return _plain(grpc.StatusCode.INVALID_ARGUMENT, error)
    return _plain(grpc.StatusCode.UNKNOWN, error)


def _plain(code: grpc.StatusCode, error: BaseException) -> Json:
    return {"code": code.name, "reason": "", "message": f"{type(error).__name__}: {error}"}


def _clag_error(error: ClagError) -> Json:
    name = types_pb2.ErrorReason.Name(error.reason).removeprefix("ERROR_REASON_") if error.reason else ""
    told: Json = {"code": error.code.name, "reason": name, "message": error.message}
    if error.violations:
        told["violations"] = [{"field": one.field, "description": one.description} for one in error.violations]
    if error.retry_after_s is not None:
        told["retry_after_ms"] = round(error.retry_after_s * 1_000)
    return told
