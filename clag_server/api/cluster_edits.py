"""ClusterService at the edge: the calls that change clusters, and their history."""

# ruff: noqa: N802 - methods have the names of the contract

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import cast

from clag.v1 import cluster_service_pb2 as pb
from clag.v1 import types_pb2
from google.protobuf.message import Message

from clag_server.api.convert_cluster import cluster_to
from clag_server.api.convert_values import cluster_id, cluster_number, revision, time_to
from clag_server.api.interceptors.guard import Context
from clag_server.api.limits import page_size
from clag_server.api.paging import page_token, resume_after_number, scope_of
from clag_server.memory.cluster_service import ClusterService, Edited, EditOptions, MemoryGroup, ProfileChange
from clag_server.types.cluster import ClusterField, ClusterHistoryEntry
from clag_server.types.errors import FieldViolation, InvalidField, NotFound

__all__ = ["ClusterEditCalls"]

_PIN = "pinned"
_PATHS = frozenset({*ClusterField, _PIN})


class ClusterEditCalls:
    """The edits of a ClusterServicer.

    Args:
        edits: The domain.
    """

    def __init__(self, edits: ClusterService) -> None:
        self._edits = edits

    async def UpdateCluster(self, request: pb.UpdateClusterRequest, _context: Context) -> pb.UpdateClusterResponse:
        """Rename, re-describe, pin or unpin a cluster."""
        namespace, number = request.edit.namespace, _number(request.cluster_id)
        edited = await self._edits.update(
            namespace, number, _profile_change(request), _options(request, request.edit)
        )
        return pb.UpdateClusterResponse(cluster=_only(namespace, edited), revision=_revision(namespace, edited))

    async def MergeClusters(self, request: pb.MergeClustersRequest, _context: Context) -> pb.MergeClustersResponse:
        """Merge clusters into one."""
        namespace = request.edit.namespace
        edited = await self._edits.merge(
            namespace,
            _number(request.target_cluster_id),
            [_number(source) for source in request.source_cluster_ids],
            _options(request, request.edit),
        )
        return pb.MergeClustersResponse(
            cluster=_only(namespace, edited), moved=edited.moved, revision=_revision(namespace, edited)
        )

    async def SplitCluster(self, request: pb.SplitClusterRequest, _context: Context) -> pb.SplitClusterResponse:
        """Split a cluster by likeness or by listed groups."""
        namespace, number = request.edit.namespace, _number(request.cluster_id)
        options = _options(request, request.edit)
        if request.WhichOneof("how") == "parts":
            edited = await self._edits.split_into(namespace, number, request.parts, options)
        else:
            edited = await self._edits.split_off(namespace, number, _groups(request.groups), options)
        return pb.SplitClusterResponse(clusters=_all(namespace, edited), revision=_revision(namespace, edited))

    async def MoveMemories(self, request: pb.MoveMemoriesRequest, _context: Context) -> pb.MoveMemoriesResponse:
        """Move memories to another cluster."""
        namespace = request.edit.namespace
        edited = await self._edits.move(
            namespace, _number(request.target_cluster_id), request.memory_ids, _options(request, request.edit)
        )
        return pb.MoveMemoriesResponse(moved=edited.moved, revision=_revision(namespace, edited))

    async def ArchiveCluster(
        self, request: pb.ArchiveClusterRequest, _context: Context
    ) -> pb.ArchiveClusterResponse:
        """Archive or restore a cluster."""
        namespace = request.edit.namespace
        edited = await self._edits.archive(
            namespace, _number(request.cluster_id), request.archived, _options(request, request.edit)
        )
        return pb.ArchiveClusterResponse(cluster=_only(namespace, edited), revision=_revision(namespace, edited))

    async def ListClusterHistory(
        self, request: pb.ListClusterHistoryRequest, _context: Context
    ) -> pb.ListClusterHistoryResponse:
        """Page through what happened to a cluster, newest first."""
        scope = scope_of("ListClusterHistory", request.namespace, request.cluster_id)
        before = resume_after_number(scope, request.page_token, start=0)
        limit = page_size(request.page_size)
        entries = await self._edits.history(
            request.namespace, _number(request.cluster_id), before=before or None, limit=limit + 1
        )
        shown = entries[:limit]
        return pb.ListClusterHistoryResponse(
            entries=[_entry(request.namespace, entry) for entry in shown],
            next_page_token=page_token(scope, shown[-1].revision if len(entries) > limit else None),
        )


def _number(given: str) -> int:
    number = cluster_number(given)
    if number is None:
        raise NotFound("cluster", given)
    return number


def _options(request: Message, edit: pb.Edit) -> EditOptions:
    return EditOptions(
        request_id=edit.request_id,
        digest=hashlib.sha256(
            type(request).__name__.encode() + b"\0" + request.SerializeToString(deterministic=True)
        ).digest(),
        preview=edit.validate_only,
        etag=edit.etag,
    )


def _profile_change(request: pb.UpdateClusterRequest) -> ProfileChange:
    """Read the masked fields. Raises InvalidField for a path that names none of them, or for none at all."""
    paths = list(request.update_mask.paths)
    wrong = [path for path in paths if path not in _PATHS]
    if wrong or not paths:
        known = ", ".join(sorted(_PATHS))
        what = (
            f'"{wrong[0][:64]}" cannot be updated; these can: {known}' if wrong else f"name at least one of {known}"
        )
        raise InvalidField(FieldViolation("update_mask.paths", what))
    cluster = request.cluster
    return ProfileChange(
        fields=frozenset(ClusterField(path) for path in paths if path != _PIN),
        title=" ".join(cluster.title.split()),
        summary=cluster.summary.strip(),
        tags=tuple(dict.fromkeys(cluster.tags)),
        pinned=cluster.pinned if _PIN in paths else None,
    )


def _groups(groups: pb.MemoryGroups) -> Sequence[MemoryGroup]:
    """Read the groups of a split. Raises InvalidField where a memory is named twice."""
    seen: set[str] = set()
    for number, group in enumerate(groups.groups):
        for memory_id in group.memory_ids:
            if memory_id in seen:
                raise InvalidField(
                    FieldViolation(f"groups.groups[{number}].memory_ids", f"{memory_id} is named more than once")
                )
            seen.add(memory_id)
    return [MemoryGroup(" ".join(group.title.split()), tuple(group.memory_ids)) for group in groups.groups]


def _all(namespace: str, edited: Edited) -> list[types_pb2.Cluster]:
    clusters = [cluster_to(namespace, view) for view in edited.clusters]
    for cluster, view in zip(clusters, edited.clusters, strict=True):
        if view.cluster.cluster < 0:
            cluster.cluster_id = ""  # in a preview, a new cluster has no id yet
    return clusters


def _only(namespace: str, edited: Edited) -> types_pb2.Cluster | None:
    """Return the edited cluster; None where a retry finds that it is gone since."""
    clusters = _all(namespace, edited)
    return clusters[0] if clusters else None


def _revision(namespace: str, edited: Edited) -> types_pb2.Revision | None:
    return revision(namespace, edited.revision) if edited.revision else None


def _entry(namespace: str, entry: ClusterHistoryEntry) -> pb.ClusterHistoryEntry:
    note = entry.note
    return pb.ClusterHistoryEntry(
        event=cast("pb.ClusterEvent.ValueType", int(note.event)),
        time=time_to(entry.time_ns),
        revision=revision(namespace, entry.revision),
        cluster_ids=[cluster_id(number) for number in note.others],
        memories=note.memories,
        reason=note.reason,
        operation_id=note.operation_id,
        old_title=note.old_title,
        new_title=note.new_title,
    )
