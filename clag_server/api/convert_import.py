"""Imported rows from protobuf to domain, each checked by itself, and the answers of an import.

Fields that a client may set are held to the rules of `MemoryInput`, whose fields have the numbers that they have in
`Memory`; those of the server are bounded here, as they can come from anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from clag.v1 import admin_service_pb2 as pb
from clag.v1 import types_pb2
from google.protobuf.timestamp_pb2 import Timestamp

from clag_server.api.convert_memory import new_memory_from
from clag_server.api.convert_routing import link_from, routing_from
from clag_server.api.convert_values import revision, time_from
from clag_server.api.import_rules import cluster_violations, memory_violations
from clag_server.contract.pool import strict_class
from clag_server.contract.violations import violations
from clag_server.types.cluster import ClusterState
from clag_server.types.errors import FieldViolation, InvalidField
from clag_server.types.ingest import Ack, Disposition, Rejection, StreamPosition, StreamTotals
from clag_server.types.memory import AnnotationSource, Memory, MemoryState, Vector
from clag_server.types.namespace import NamespaceSettings, RoutingUnit
from clag_server.types.transfer import (
    ImportedCluster,
    ImportedMemory,
    ImportedNamespace,
    ImportOptions,
    ImportRow,
    OnConflict,
)

__all__ = ["ack_to", "finished_to", "opened_to", "options_from", "row_from"]

_UNIT: Final = 1e-5
"""An embedding whose squared length is this near 1 is taken as it is: a round trip must not change a bit."""


def options_from(opening: pb.ImportOpen) -> ImportOptions:
    """How rows are taken."""
    conflict = OnConflict(opening.on_conflict) if opening.on_conflict else OnConflict.KEEP
    return ImportOptions(on_conflict=conflict, keep_organization=opening.keep_organization)


def row_from(record: Any, *, now_ns: int, same_space: Callable[[str, int], bool]) -> ImportRow:
    """A row, or why it is rejected.

    Args:
        record: An `ExportRecord` of the class with rules.
        now_ns: The time for memories that have none.
        same_space: Whether embeddings of a model and dimension are of our embedder's space.
    """
    found = violations(record, embeddings=False)
    if found:
        return Rejection(found[0].field, found[0].description)
    try:
        match record.WhichOneof("record"):
            case "namespace":
                known = record.namespace
                return ImportedNamespace(
                    _settings(known.settings), same_space(known.embedding_model, known.embedding_dimension)
                )
            case "cluster":
                return _cluster(record.cluster, now_ns)
            case _:
                return _memory(record.memory, now_ns)
    except InvalidField as invalid:
        return Rejection(invalid.violations[0].field, invalid.violations[0].description)


def opened_to(
    position: StreamPosition, *, window_items: int, batch_items: int, batch_bytes: int
) -> pb.ImportResponse:
    """The first answer of an import."""
    return pb.ImportResponse(
        opened=pb.ImportOpened(
            next_seq=position.next_seq,
            window_items=window_items,
            max_batch_items=batch_items,
            max_batch_bytes=batch_bytes,
        )
    )


def ack_to(namespace: str, ack: Ack) -> pb.ImportResponse:
    """An acknowledgement; of the outcomes only rejections are told."""
    rejections = [
        pb.ImportRejection(
            seq=outcome.seq,
            error=types_pb2.ItemError(
                reason=types_pb2.ErrorReason.ERROR_REASON_INVALID_FIELD,
                field=outcome.rejection.field,
                message=outcome.rejection.description,
            ),
        )
        for outcome in ack.results
        if outcome.disposition is Disposition.REJECTED and outcome.rejection is not None
    ]
    return pb.ImportResponse(
        ack=pb.ImportAck(
            acked_through=ack.acked_through,
            window_items=ack.window_items,
            rejections=rejections,
            revision=revision(namespace, ack.revision),
        )
    )


def finished_to(namespace: str, totals: StreamTotals) -> pb.ImportResponse:
    """The last answer of a finished import."""
    return pb.ImportResponse(
        finished=pb.ImportFinished(
            imported=totals.created,
            duplicates=totals.duplicates,
            rejected=totals.rejected,
            revision=revision(namespace, totals.revision),
        )
    )


def _settings(message: pb.NamespaceSettings) -> NamespaceSettings:
    return NamespaceSettings(
        purpose=message.purpose,
        routing_unit=RoutingUnit(message.routing_unit) if message.routing_unit else None,
        default_time_to_live_ns=(
            message.default_time_to_live.ToNanoseconds() if message.HasField("default_time_to_live") else None
        ),
        archive_after_ns=message.archive_after.ToNanoseconds() if message.HasField("archive_after") else None,
        auto_reorganize=message.auto_reorganize if message.HasField("auto_reorganize") else None,
    )


def _cluster(message: types_pb2.Cluster, now_ns: int) -> ImportedCluster:
    _refuse(cluster_violations(message))
    created = _time(message, "create_time", now_ns)
    return ImportedCluster(
        cluster_id=message.cluster_id,
        title=message.title,
        summary=message.summary,
        tags=tuple(message.tags),
        pinned=message.pinned,
        state=ClusterState(message.state) if message.state else ClusterState.ACTIVE,
        profiled_by=AnnotationSource(message.profiled_by),
        profile_stale=message.profile_stale,
        memory_count=message.memory_count,
        representative_ids=tuple(message.representative_ids),
        create_time_ns=created,
        update_time_ns=_time(message, "update_time", created),
    )


def _memory(message: types_pb2.Memory, now_ns: int) -> ImportedMemory:
    given: Any = strict_class("clag.v1.MemoryInput").FromString(message.SerializeToString())
    given.importance = message.importance  # 0 is not written, and must not become "not set"
    _refuse((*violations(given, prefix="memory.", embeddings=False), *memory_violations(message)))
    new = new_memory_from(given, dim=None, prefix="memory.")
    created = _time(message, "create_time", now_ns)
    memory = Memory(
        key=0,
        memory_id=new.memory_id,
        text=new.text,
        kind=new.kind,
        task=new.task,
        speaker=new.speaker,
        session_id=new.session_id,
        session_position=message.session_position,
        tags=new.tags,
        attributes=new.attributes,
        importance=new.importance,
        confidence=message.confidence,
        event_time_ns=created if new.event_time_ns is None else new.event_time_ns,
        create_time_ns=created,
        update_time_ns=_time(message, "update_time", created),
        expire_time_ns=new.expire_time_ns,
        context=message.context,
        keywords=tuple(message.keywords),
        evolved_tags=tuple(message.evolved_tags),
        links=tuple(link_from(link) for link in message.links),
        cluster=None,
        episode=None,
        state=MemoryState(message.state) if message.state else MemoryState.STORED,
        routing=routing_from(message.routing) if message.HasField("routing") else None,
        supersedes=new.supersedes,
        superseded_by=message.superseded_by,
        access_count=message.access_count,
        last_access_time_ns=_time(message, "last_access_time", 0) or None,
        revision=0,
        error="",
        has_embedding=new.embedding is not None,
        embedding=_as_it_was(message, new.embedding),
        client_embedding=message.client_embedding,
        annotated_by=AnnotationSource(message.annotated_by),
    )
    return ImportedMemory(memory, message.cluster_id, message.episode_id, "")


def _as_it_was(message: types_pb2.Memory, normalised: Vector | None) -> Vector | None:
    if normalised is None:
        return None
    vector = np.asarray(message.embedding, dtype=np.float32)
    return vector if abs(float(vector @ vector) - 1.0) < _UNIT else normalised


def _time(message: types_pb2.Memory | types_pb2.Cluster, field: str, otherwise: int) -> int:
    stamp: Timestamp = getattr(message, field)
    return time_from(stamp) if message.HasField(field) else otherwise  # type: ignore[arg-type]  # names of both


def _refuse(found: tuple[FieldViolation, ...]) -> None:
    if found:
        raise InvalidField(*found)
