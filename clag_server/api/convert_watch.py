"""Watches and histories between protobuf and domain."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2

from clag_server.api.convert_cluster import cluster_to
from clag_server.api.convert_memory import memory_to
from clag_server.api.convert_values import cluster_id, fresh_revision, revision, time_to
from clag_server.memory.watching import WatchedChange, WatchEvent, WatchQuery
from clag_server.types.change import ChangeKind, HistoryEntry
from clag_server.types.errors import FieldViolation, InvalidField

if TYPE_CHECKING:
    from clag.v1.memory_service_pb2 import ChangeKind as KindPb
    from clag.v1.memory_service_pb2 import HistoryCause as CausePb

__all__ = ["event_to", "history_entry_to", "watch_query_from"]


def watch_query_from(request: pb.WatchRequest) -> WatchQuery:
    """What to watch.

    Raises:
        InvalidField: The revision is malformed or belongs to another namespace.
    """
    return WatchQuery(
        namespace=request.namespace,
        after=_after(request),
        kinds=frozenset(ChangeKind(kind) for kind in request.kinds),
        values=request.include_values,
    )


def event_to(namespace: str, event: WatchEvent) -> pb.WatchResponse:
    """One response."""
    return pb.WatchResponse(
        changes=[_change(namespace, watched) for watched in event.changes],
        through=revision(namespace, event.through),
        checkpoint=not event.changes,
    )


def history_entry_to(namespace: str, entry: HistoryEntry) -> pb.MemoryHistoryEntry:
    """One entry of a memory's history."""
    return pb.MemoryHistoryEntry(
        cause=cast("CausePb.ValueType", int(entry.cause)),
        cause_memory_id=entry.cause_memory_id,
        time=time_to(entry.time_ns),
        revision=revision(namespace, entry.revision) if entry.revision else None,
        changes=[
            pb.FieldChange(field=change.field, old_value=change.old, new_value=change.new)
            for change in entry.changes
        ],
        model=entry.model,
        cluster_id=cluster_id(entry.cluster),
    )


def _after(request: pb.WatchRequest) -> int | None:
    token = request.start_after.token
    if not token:
        return None
    try:
        asked = types_pb2.ReadOptions(at_least_as_fresh=types_pb2.Revision(token=token))
        return fresh_revision(request.namespace, asked)
    except InvalidField as invalid:
        raise InvalidField(FieldViolation("start_after.token", invalid.violations[0].description)) from None


def _change(namespace: str, watched: WatchedChange) -> pb.Change:
    change = watched.change
    message = pb.Change(
        kind=cast("KindPb.ValueType", int(change.kind)),
        memory_id=change.memory_id,
        cluster_id=cluster_id(change.cluster),
        old_cluster_id=cluster_id(change.old_cluster),
        time=time_to(change.time_ns),
    )
    if watched.memory is not None:
        message.memory.CopyFrom(memory_to(namespace, watched.memory))
    if watched.cluster is not None:
        message.cluster.CopyFrom(cluster_to(namespace, watched.cluster))
    return message
