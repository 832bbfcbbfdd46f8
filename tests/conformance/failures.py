"""How a server fails by the contract: codes, reasons, details."""

from __future__ import annotations

from typing import Any, Final

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

__all__ = ["CODES", "fail"]

_Code = grpc.StatusCode
CODES: Final = {
    "INVALID_FIELD": _Code.INVALID_ARGUMENT,
    "MALFORMED_MESSAGE": _Code.INVALID_ARGUMENT,
    "NOT_FOUND": _Code.NOT_FOUND,
    "ALREADY_EXISTS": _Code.ALREADY_EXISTS,
    "ETAG_MISMATCH": _Code.ABORTED,
    "REQUEST_ID_REUSED": _Code.INVALID_ARGUMENT,
    "STREAM_FENCED": _Code.ABORTED,
    "SEQUENCE_GAP": _Code.OUT_OF_RANGE,
    "WINDOW_EXCEEDED": _Code.RESOURCE_EXHAUSTED,
    "FRAME_ORDER": _Code.FAILED_PRECONDITION,
    "WATCH_COMPACTED": _Code.OUT_OF_RANGE,
    "PAGE_TOKEN_MISMATCH": _Code.INVALID_ARGUMENT,
    "OVERLOADED": _Code.RESOURCE_EXHAUSTED,
    "MODEL_UNAVAILABLE": _Code.UNAVAILABLE,
    "MODEL_MISMATCH": _Code.FAILED_PRECONDITION,
    "DRAINING": _Code.UNAVAILABLE,
    "UNAUTHENTICATED": _Code.UNAUTHENTICATED,
    "PERMISSION_DENIED": _Code.PERMISSION_DENIED,
    "NAMESPACE_LIMIT": _Code.RESOURCE_EXHAUSTED,
    "NAMESPACE_DELETED": _Code.NOT_FOUND,
    "STORAGE_DEGRADED": _Code.UNAVAILABLE,
    "NOT_IMPLEMENTED": _Code.UNIMPLEMENTED,
    "MESSAGE_TOO_LARGE": _Code.RESOURCE_EXHAUSTED,
    "INTERNAL": _Code.INTERNAL,
    "OWNERSHIP": _Code.FAILED_PRECONDITION,
    "DEADLINE": _Code.DEADLINE_EXCEEDED,
    "OPERATION_RUNNING": _Code.FAILED_PRECONDITION,
    "CLUSTER_STATE": _Code.FAILED_PRECONDITION,
    "QUARANTINED": _Code.INTERNAL,
    "EMBEDDING_SHAPE": _Code.INVALID_ARGUMENT,
    "CANCELLED": _Code.CANCELLED,
}
"""Every reason of the contract and its code, as its comments have them."""


async def fail(context: Any, reason: str, *, code: str = "", retry_ms: int | None = None, field: str = "") -> None:
    """End a call with the details that the contract promises."""
    details: list[Any] = [
        error_details_pb2.ErrorInfo(reason=f"ERROR_REASON_{reason}", domain="clag", metadata={"fact": "told"})
    ]
    if field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=field, description="is wrong")
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if retry_ms is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(retry_ms)
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    packed = []
    for detail in details:
        packed.append(any_pb2.Any())
        packed[-1].Pack(detail)
    status_code = grpc.StatusCode[code] if code else CODES.get(reason, _Code.UNKNOWN)
    message = f"failed with {reason}, größer als 猫"
    status = status_pb2.Status(code=status_code.value[0], message=message, details=packed)
    await context.abort(status_code, message, (("grpc-status-details-bin", status.SerializeToString()),))
