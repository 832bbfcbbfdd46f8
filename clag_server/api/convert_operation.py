"""Operations, from domain to protobuf."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from clag.v1 import admin_service_pb2 as pb
from clag.v1 import types_pb2

from clag_server.api.convert_probe import probe_to
from clag_server.api.convert_reorganize import reorganize_result_to
from clag_server.api.convert_values import time_to
from clag_server.memory.probing.reports import report_from
from clag_server.types.operation import JsonValue, Operation, OperationKind, OperationState

if TYPE_CHECKING:
    from clag.v1.admin_service_pb2 import OperationKind as KindPb
    from clag.v1.admin_service_pb2 import OperationState as StatePb

__all__ = ["operation_to"]


def operation_to(operation: Operation) -> pb.Operation:
    """The message of an operation as it stands."""
    message = pb.Operation(
        operation_id=operation.operation_id,
        namespace=operation.namespace,
        kind=cast("KindPb.ValueType", int(operation.kind)),
        state=cast("StatePb.ValueType", int(operation.state)),
        phase=operation.phase,
        done=operation.done,
        total=operation.total,
        create_time=time_to(operation.create_time_ns),
    )
    if operation.end_time_ns is not None:
        message.end_time.CopyFrom(time_to(operation.end_time_ns))
    if operation.state is OperationState.FAILED:
        message.error.CopyFrom(types_pb2.ItemError(reason=types_pb2.ERROR_REASON_INTERNAL, message=operation.error))
    elif operation.state is OperationState.CANCELLED:
        reason = operation.error or "a client cancelled it"
        message.error.CopyFrom(types_pb2.ItemError(reason=types_pb2.ERROR_REASON_CANCELLED, message=reason))
    fill = _RESULTS.get(operation.kind)
    if fill is not None and operation.result:
        fill(message, operation.result)
    return message


def _reindex(message: pb.Operation, result: Mapping[str, JsonValue]) -> None:
    memories = result.get("memories", 0)
    message.reindex.memories = memories if isinstance(memories, int) else 0
    message.reindex.embedding_model = str(result.get("embedding_model", ""))


def _reorganize(message: pb.Operation, result: Mapping[str, JsonValue]) -> None:
    message.reorganize.CopyFrom(reorganize_result_to(message.namespace, result))


def _probe(message: pb.Operation, result: Mapping[str, JsonValue]) -> None:
    # An operation is kept for a week, and so may outlive the version whose marks it holds.
    with suppress(ValueError, KeyError, TypeError):
        message.probe.CopyFrom(probe_to(report_from(result)))


_RESULTS: Mapping[OperationKind, Callable[[pb.Operation, Mapping[str, JsonValue]], None]] = {
    OperationKind.REINDEX: _reindex,
    OperationKind.REEMBED: _reindex,
    OperationKind.REORGANIZE: _reorganize,
    OperationKind.PROBE: _probe,
}
"""How the result of each kind is told; kinds that are not here have none."""
