"""What a call can fail with, decoded from the status details that the server sends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import grpc
from clag.v1 import types_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

__all__ = ["ClagError", "FieldViolation", "SourceError", "from_rpc"]

_DETAILS_KEY: Final = "grpc-status-details-bin"


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One wrong field of a request: its path, e.g. `memory.tags[2]`, and what is wrong."""

    field: str
    description: str


class ClagError(Exception):
    """A call failed.

    Attributes:
        code: the canonical status code.
        reason: number of a `clag.v1.ErrorReason`; 0 when the failure did not come from the server's own code,
            e.g. when it cannot be reached.
        message: a sentence for people.
        violations: the wrong fields of the request, if that was it.
        retry_after_s: seconds to wait before trying again; None when trying again cannot help by itself.
        metadata: facts by name, e.g. "next_seq" or "incident_id".
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        *,
        reason: types_pb2.ErrorReason.ValueType = types_pb2.ERROR_REASON_UNSPECIFIED,
        violations: Iterable[FieldViolation] = (),
        retry_after_s: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.reason = reason
        self.message = message
        self.violations = tuple(violations)
        self.retry_after_s = retry_after_s
        self.metadata = dict(metadata or {})


class SourceError(Exception):
    """An item handed to `ingest` could not be read or made into a message; the cause is chained.

    Attributes:
        seq: sequence number that the item would have had.
    """

    def __init__(self, seq: int, why: str) -> None:
        super().__init__(f"item {seq} cannot be sent: {why}")
        self.seq = seq


def from_rpc(error: grpc.aio.AioRpcError) -> ClagError:
    """Decode a failed call.

    Details that cannot be decoded are left out: the code and message still say what happened.
    """
    violations: list[FieldViolation] = []
    retry_after_s: float | None = None
    info = error_details_pb2.ErrorInfo()
    for detail in _details(error):
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            detail.Unpack(info)
        elif detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
            request = error_details_pb2.BadRequest()
            detail.Unpack(request)
            violations += [FieldViolation(one.field, one.description) for one in request.field_violations]
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            retry = error_details_pb2.RetryInfo()
            detail.Unpack(retry)
            retry_after_s = retry.retry_delay.ToNanoseconds() / 1e9
    return ClagError(
        error.code(),
        error.details() or "",
        reason=_reason(info.reason),
        violations=violations,
        retry_after_s=retry_after_s,
        metadata=info.metadata,
    )


def _reason(name: str) -> types_pb2.ErrorReason.ValueType:
    """Return a reason by name; one that a newer server knows and we do not is UNSPECIFIED."""
    if name in types_pb2.ErrorReason.keys():  # noqa: SIM118  # no mapping
        return types_pb2.ErrorReason.Value(name)
    return types_pb2.ERROR_REASON_UNSPECIFIED


def _details(error: grpc.aio.AioRpcError) -> list[Any]:
    status = status_pb2.Status()
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            parse: Callable[[bytes], object] = status.ParseFromString
            try:
                parse(value)
            except DecodeError:
                return []
    return list(status.details)
