"""Frames of the ingest stream between protobuf and domain."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from clag.v1 import memory_service_pb2, types_pb2

from clag_server.api.convert_values import cluster_id, revision
from clag_server.api.limits import MAX_TEXT_BYTES
from clag_server.types.errors import FieldViolation, InvalidField
from clag_server.types.ingest import (
    Ack,
    AckLevel,
    IngestStages,
    ItemOutcome,
    Rejection,
    StreamPosition,
    StreamTotals,
)
from clag_server.types.memory import MemoryState

if TYPE_CHECKING:
    from clag.v1.memory_service_pb2 import AckLevel as LevelPb
    from clag.v1.memory_service_pb2 import Disposition as DispositionPb
    from clag.v1.types_pb2 import MemoryState as StatePb

__all__ = ["ack_to", "finished_to", "level_and_stages", "level_from", "opened_to"]

_HIGHEST = {IngestStages.EMBED_ONLY: AckLevel.SEARCHABLE, IngestStages.STORE_ONLY: AckLevel.DURABLE}
"""Levels that the stages reach by themselves."""


def level_from(value: int) -> AckLevel:
    """Ack level of a request; DURABLE when unset."""
    return AckLevel(value) if value else AckLevel.DURABLE


def level_and_stages(message: memory_service_pb2.IngestOpen) -> tuple[AckLevel, IngestStages]:
    """What a stream asks for.

    Raises:
        InvalidField: The stages never reach the level by themselves.
    """
    level = level_from(message.ack_level)
    stages = IngestStages(message.stages) if message.stages else IngestStages.ALL
    highest = _HIGHEST.get(stages, AckLevel.ORGANIZED)
    if level > highest:
        raise InvalidField(
            FieldViolation("open.ack_level", f"with stages {stages.name} the highest level is {highest.name}")
        )
    return level, stages


def opened_to(
    position: StreamPosition, *, window_items: int, max_batch_items: int, max_batch_bytes: int
) -> memory_service_pb2.IngestResponse:
    """The first answer of a stream."""
    return memory_service_pb2.IngestResponse(
        opened=memory_service_pb2.IngestOpened(
            next_seq=position.next_seq,
            window_items=window_items,
            max_batch_items=max_batch_items,
            max_batch_bytes=max_batch_bytes,
            max_text_bytes=MAX_TEXT_BYTES,
        )
    )


def ack_to(namespace: str, ack: Ack) -> memory_service_pb2.IngestResponse:
    """An acknowledgement."""
    return memory_service_pb2.IngestResponse(
        ack=memory_service_pb2.IngestAck(
            acked_through=ack.acked_through,
            durable_through=ack.durable_through,
            window_items=ack.window_items,
            results=[_result(outcome) for outcome in ack.results],
            revision=revision(namespace, ack.revision),
        )
    )


def finished_to(namespace: str, totals: StreamTotals) -> memory_service_pb2.IngestResponse:
    """The last answer of a finished stream."""
    return memory_service_pb2.IngestResponse(
        finished=memory_service_pb2.IngestFinished(
            created=totals.created,
            duplicates=totals.duplicates,
            rejected=totals.rejected,
            quarantined=totals.quarantined,
            revision=revision(namespace, totals.revision),
        )
    )


def _result(outcome: ItemOutcome) -> memory_service_pb2.IngestResult:
    return memory_service_pb2.IngestResult(
        seq=outcome.seq,
        disposition=cast("DispositionPb.ValueType", int(outcome.disposition)),
        level=cast("LevelPb.ValueType", int(outcome.level or 0)),
        memory_id=outcome.memory_id,
        cluster_id=cluster_id(outcome.cluster),
        state=cast("StatePb.ValueType", int(outcome.state or 0)),
        error=_item_error(outcome),
    )


def _item_error(outcome: ItemOutcome) -> types_pb2.ItemError | None:
    reasons = types_pb2.ErrorReason
    if outcome.rejection is not None:
        return types_pb2.ItemError(
            reason=_rejection_reason(outcome.rejection),
            field=outcome.rejection.field,
            message=outcome.rejection.description,
        )
    if outcome.state is MemoryState.QUARANTINED:
        return types_pb2.ItemError(reason=reasons.ERROR_REASON_QUARANTINED, message=outcome.error)
    return None


def _rejection_reason(rejection: Rejection) -> types_pb2.ErrorReason.ValueType:
    """The whole embedding is at fault when its length or direction is; a single number names its index."""
    if rejection.field == "embedding":
        return types_pb2.ErrorReason.ERROR_REASON_EMBEDDING_SHAPE
    return types_pb2.ErrorReason.ERROR_REASON_INVALID_FIELD
