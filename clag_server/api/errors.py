"""Every failure a caller can meet: typed errors to canonical code, reason and details, in ONE table.

Details are `google.rpc` messages (AIP-193): ErrorInfo with a reason of `clag.v1.ErrorReason` and domain "clag",
BadRequest for wrong fields, RetryInfo where trying again helps. An exception that is not in the table is a fault
of the server: the caller gets INTERNAL with an opaque incident id, the log gets the rest.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import grpc
import structlog
from clag.v1 import types_pb2
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from clag_server.api.convert_values import EmbeddingShape
from clag_server.contract.codec import MalformedMessage
from clag_server.models import api as models
from clag_server.types import errors

__all__ = [
    "CursorMismatch",
    "DeadlinePassed",
    "Failure",
    "PageTokenMismatch",
    "Starting",
    "TooLarge",
    "Unauthenticated",
    "WatchCompacted",
    "abort",
    "failure_of",
    "single",
]

_log = structlog.get_logger("clag.api")

DOMAIN = "clag"

_MAX_DETAIL_BYTES = 3072
"""Details travel base64-coded in a trailer: 3 KiB are 4 KiB there, half of what peers accept at least."""

_MAX_MESSAGE_CHARS = 600
_MAX_FIELD_CHARS = 300

_Reason = types_pb2.ErrorReason
_Code = grpc.StatusCode


class Unauthenticated(errors.ClagError):
    """No token, or the wrong one."""

    def __init__(self) -> None:
        super().__init__('a valid token is needed: send the metadata "authorization: Bearer TOKEN"')


class Starting(errors.ClagError):
    """The stores are not open yet."""

    def __init__(self) -> None:
        super().__init__("the server is starting; its stores are not open yet")
        self.retry_after_s = 1.0


class PageTokenMismatch(errors.ClagError):
    """A page token that is malformed or belongs to another request."""

    def __init__(self) -> None:
        super().__init__("page_token is malformed or belongs to another request; begin with the first page")


class CursorMismatch(PageTokenMismatch):
    """An export's cursor that is malformed or belongs to another export."""

    def __init__(self) -> None:
        errors.ClagError.__init__(self, "cursor is malformed or belongs to another export; start a new one")


class WatchCompacted(errors.LogCompacted):
    """The change log no longer reaches back that far; `oldest_revision` is a token to resume after."""

    def __init__(self, error: errors.LogCompacted, oldest_revision: str) -> None:
        super().__init__(asked=error.asked, oldest=error.oldest)
        self.oldest_revision = oldest_revision


class TooLarge(errors.ClagError):
    """A frame or an answer is larger than the limit."""

    def __init__(self, what: str, *, size: int, limit: int, advice: str) -> None:
        super().__init__(f"{what} has {size} bytes, the limit is {limit}; {advice}")


class DeadlinePassed(errors.ClagError):
    """The call took longer than it may."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"the call took longer than its {limit_s:.3g} s")


@dataclass(frozen=True, slots=True)
class Failure:
    """What a caller is told: code, reason (a `clag.v1.ErrorReason`), sentence and facts."""

    code: grpc.StatusCode
    reason: types_pb2.ErrorReason.ValueType
    message: str
    violations: Sequence[errors.FieldViolation] = ()
    retry_after_s: float | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    def status(self) -> bytes:
        """Serialise `google.rpc.Status` within the limit: field violations that do not fit are counted."""
        shown = list(self.violations)
        while True:
            status: bytes = self._status(shown, left_out=len(self.violations) - len(shown)).SerializeToString()
            if len(status) <= _MAX_DETAIL_BYTES or not shown:
                return status
            del shown[len(shown) // 2 :]

    def _status(self, shown: Sequence[errors.FieldViolation], *, left_out: int) -> status_pb2.Status:
        metadata = {key: _clean(value, _MAX_FIELD_CHARS) for key, value in self.metadata.items()}
        if left_out:
            metadata["violations_left_out"] = str(left_out)
        details: list[any_pb2.Any] = [
            _any(error_details_pb2.ErrorInfo(reason=_Reason.Name(self.reason), domain=DOMAIN, metadata=metadata))
        ]
        if shown:
            fields = [
                error_details_pb2.BadRequest.FieldViolation(
                    field=_clean(v.field, _MAX_FIELD_CHARS), description=_clean(v.description, _MAX_FIELD_CHARS)
                )
                for v in shown
            ]
            details.append(_any(error_details_pb2.BadRequest(field_violations=fields)))
        if self.retry_after_s is not None:
            delay = duration_pb2.Duration()
            delay.FromNanoseconds(int(self.retry_after_s * 1e9))
            details.append(_any(error_details_pb2.RetryInfo(retry_delay=delay)))
        return status_pb2.Status(
            code=self.code.value[0], message=_clean(self.message, _MAX_MESSAGE_CHARS), details=details
        )


@dataclass(frozen=True, slots=True)
class _Row:
    code: grpc.StatusCode
    reason: types_pb2.ErrorReason.ValueType


_TABLE: Mapping[type[Exception], _Row] = {
    errors.InvalidField: _Row(_Code.INVALID_ARGUMENT, _Reason.ERROR_REASON_INVALID_FIELD),
    EmbeddingShape: _Row(_Code.INVALID_ARGUMENT, _Reason.ERROR_REASON_EMBEDDING_SHAPE),
    MalformedMessage: _Row(_Code.INVALID_ARGUMENT, _Reason.ERROR_REASON_MALFORMED_MESSAGE),
    TooLarge: _Row(_Code.RESOURCE_EXHAUSTED, _Reason.ERROR_REASON_MESSAGE_TOO_LARGE),
    errors.NotFound: _Row(_Code.NOT_FOUND, _Reason.ERROR_REASON_NOT_FOUND),
    errors.EtagMismatch: _Row(_Code.ABORTED, _Reason.ERROR_REASON_ETAG_MISMATCH),
    errors.RequestIdReused: _Row(_Code.INVALID_ARGUMENT, _Reason.ERROR_REASON_REQUEST_ID_REUSED),
    errors.StreamFenced: _Row(_Code.ABORTED, _Reason.ERROR_REASON_STREAM_FENCED),
    errors.SequenceGap: _Row(_Code.OUT_OF_RANGE, _Reason.ERROR_REASON_SEQUENCE_GAP),
    errors.WindowExceeded: _Row(_Code.RESOURCE_EXHAUSTED, _Reason.ERROR_REASON_WINDOW_EXCEEDED),
    errors.FrameOrder: _Row(_Code.FAILED_PRECONDITION, _Reason.ERROR_REASON_FRAME_ORDER),
    errors.EmbedderMismatch: _Row(_Code.FAILED_PRECONDITION, _Reason.ERROR_REASON_MODEL_MISMATCH),
    errors.ClusterStateError: _Row(_Code.FAILED_PRECONDITION, _Reason.ERROR_REASON_CLUSTER_STATE),
    errors.Overloaded: _Row(_Code.RESOURCE_EXHAUSTED, _Reason.ERROR_REASON_OVERLOADED),
    errors.LogCompacted: _Row(_Code.OUT_OF_RANGE, _Reason.ERROR_REASON_WATCH_COMPACTED),
    WatchCompacted: _Row(_Code.OUT_OF_RANGE, _Reason.ERROR_REASON_WATCH_COMPACTED),
    errors.SnapshotGone: _Row(_Code.OUT_OF_RANGE, _Reason.ERROR_REASON_PAGE_TOKEN_MISMATCH),
    errors.AlreadyExists: _Row(_Code.ALREADY_EXISTS, _Reason.ERROR_REASON_ALREADY_EXISTS),
    errors.EmbedderNotServed: _Row(_Code.FAILED_PRECONDITION, _Reason.ERROR_REASON_MODEL_MISMATCH),
    errors.NamespaceLimit: _Row(_Code.RESOURCE_EXHAUSTED, _Reason.ERROR_REASON_NAMESPACE_LIMIT),
    errors.OperationRunning: _Row(_Code.FAILED_PRECONDITION, _Reason.ERROR_REASON_OPERATION_RUNNING),
    errors.OwnershipLost: _Row(_Code.FAILED_PRECONDITION, _Reason.ERROR_REASON_OWNERSHIP),
    errors.NamespaceDeleted: _Row(_Code.NOT_FOUND, _Reason.ERROR_REASON_NAMESPACE_DELETED),
    errors.Draining: _Row(_Code.UNAVAILABLE, _Reason.ERROR_REASON_DRAINING),
    errors.StorageFailed: _Row(_Code.UNAVAILABLE, _Reason.ERROR_REASON_STORAGE_DEGRADED),
    errors.NotYetImplemented: _Row(_Code.UNIMPLEMENTED, _Reason.ERROR_REASON_NOT_IMPLEMENTED),
    models.ModelUnavailableError: _Row(_Code.UNAVAILABLE, _Reason.ERROR_REASON_MODEL_UNAVAILABLE),
    models.ModelTimeoutError: _Row(_Code.DEADLINE_EXCEEDED, _Reason.ERROR_REASON_DEADLINE),
    # An answer that fits no question: the model is out of order, and the server is not.
    models.WrongShapeError: _Row(_Code.UNAVAILABLE, _Reason.ERROR_REASON_MODEL_UNAVAILABLE),
    models.ModelRequestRefusedError: _Row(_Code.INVALID_ARGUMENT, _Reason.ERROR_REASON_INVALID_FIELD),
    Starting: _Row(_Code.UNAVAILABLE, _Reason.ERROR_REASON_STORAGE_DEGRADED),
    PageTokenMismatch: _Row(_Code.INVALID_ARGUMENT, _Reason.ERROR_REASON_PAGE_TOKEN_MISMATCH),
    Unauthenticated: _Row(_Code.UNAUTHENTICATED, _Reason.ERROR_REASON_UNAUTHENTICATED),
    DeadlinePassed: _Row(_Code.DEADLINE_EXCEEDED, _Reason.ERROR_REASON_DEADLINE),
}

_FACTS: Mapping[type[Exception], Callable[..., Mapping[str, str]]] = {
    errors.SequenceGap: lambda error: {"next_seq": str(error.expected)},
    errors.WindowExceeded: lambda error: {
        "window_items": str(error.window),
        "outstanding": str(error.outstanding),
    },
    errors.EtagMismatch: lambda error: {"etag": error.current},
    errors.EmbedderMismatch: lambda error: {"embedding_model": error.pinned},
    errors.NotFound: lambda error: {"kind": error.kind, "name": error.name},
    errors.AlreadyExists: lambda error: {"kind": error.kind, "name": error.name},
    errors.NamespaceDeleted: lambda error: {"kind": "namespace", "name": error.namespace},
    errors.EmbedderNotServed: lambda error: {"embedding_model": error.configured},
    errors.OperationRunning: lambda error: {"operation_id": error.operation_id},
    errors.OwnershipLost: lambda error: {"owner": error.owner},
    errors.StreamFenced: lambda error: {"stream_id": error.stream_id},
    WatchCompacted: lambda error: {"oldest_revision": error.oldest_revision},
}
"""Facts of an error for programs: `ErrorInfo.metadata`."""


def failure_of(error: Exception) -> Failure:
    """Map an exception; one that is not in the table is logged and becomes INTERNAL with an incident id."""
    kind = next((k for k in type(error).__mro__ if k in _TABLE), None)
    if kind is None:
        return _internal(error)
    row = _TABLE[kind]
    return Failure(
        code=row.code,
        reason=row.reason,
        message=str(error),
        violations=error.violations if isinstance(error, errors.InvalidField) else (),
        retry_after_s=getattr(error, "retry_after_s", None),
        metadata=_FACTS[kind](error) if kind in _FACTS else {},
    )


async def abort(context: grpc.aio.ServicerContext[object, object], failure: Failure) -> NoReturn:
    """End the call with the failure. Raises `grpc.aio.AbortError` always."""
    await context.abort(
        failure.code,
        _clean(failure.message, _MAX_MESSAGE_CHARS),
        (("grpc-status-details-bin", failure.status()),),
    )
    raise AssertionError("abort returned")


def single(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first real error of a task group; a cancellation only when there is nothing else."""
    flat: list[BaseException] = []
    pending: list[BaseException] = [group]
    while pending:
        error = pending.pop(0)
        if isinstance(error, BaseExceptionGroup):
            pending.extend(error.exceptions)
        else:
            flat.append(error)
    return next((error for error in flat if not isinstance(error, asyncio.CancelledError)), flat[0])


def _internal(error: Exception) -> Failure:
    incident = secrets.token_hex(8)
    _log.error("call failed", incident_id=incident, exc_info=error)
    return Failure(
        code=_Code.INTERNAL,
        reason=_Reason.ERROR_REASON_INTERNAL,
        message=f"the server failed; its log says why under incident {incident}",
        metadata={"incident_id": incident},
    )


def _any(detail: object) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)  # type: ignore[arg-type]
    return packed


def _clean(text: str, limit: int) -> str:
    """Bound a text, and replace what UTF-8 cannot carry."""
    shown = text if len(text) <= limit else text[: limit - 1] + "…"
    return shown.encode("utf-8", "replace").decode("utf-8")
