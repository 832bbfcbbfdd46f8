"""Results of re-organization, from domain to protobuf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from clag.v1 import admin_service_pb2 as pb

from clag_server.api.convert_values import cluster_id, revision
from clag_server.memory.reorganizing.plan import PlanStep, steps_of
from clag_server.types.operation import JsonValue

if TYPE_CHECKING:
    from clag.v1.admin_service_pb2 import PlanStepKind as KindPb
    from clag.v1.types_pb2 import RoutingDecider as DeciderPb

__all__ = ["in_list", "reorganize_result_to"]


def in_list(operation: pb.Operation) -> pb.Operation:
    """Leave the steps of a re-organization out of an operation: a page of them all would not fit a message."""
    if operation.HasField("reorganize"):
        operation.reorganize.ClearField("steps")
    return operation


def reorganize_result_to(namespace: str, result: Mapping[str, JsonValue]) -> pb.ReorganizeResult:
    """The message of what a re-organization did, or would do."""
    message = pb.ReorganizeResult(
        steps=[_step(step) for step in steps_of(result)],
        clusters_before=_whole(result, "clusters_before"),
        clusters_after=_whole(result, "clusters_after"),
        memories_moved=_whole(result, "moved"),
        planned_by=cast("DeciderPb.ValueType", _whole(result, "by")),
        attempts=_whole(result, "attempts"),
        dry_run=result.get("dry_run") is True,
        target_missed=str(result.get("missed", "")),
    )
    message.revision.CopyFrom(revision(namespace, _whole(result, "revision")))
    return message


def _step(step: PlanStep) -> pb.PlanStep:
    return pb.PlanStep(
        kind=cast("KindPb.ValueType", int(step.kind)),
        from_cluster_ids=[cluster_id(number) for number in step.sources if number > 0],
        to_cluster_id=cluster_id(step.target) if step.target > 0 else "",
        old_title=step.old_title,
        new_title=step.new_title,
        memories=step.memories,
        sample_memory_ids=step.samples,
        reason=step.reason,
    )


def _whole(result: Mapping[str, JsonValue], name: str) -> int:
    value = result.get(name, 0)
    return value if isinstance(value, int) else 0
