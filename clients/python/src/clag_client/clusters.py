"""Clusters: reading them, editing them by hand, having them re-organized; a part of both clients."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

import grpc
from clag.v1 import admin_service_pb2 as admin_pb
from clag.v1 import cluster_service_pb2 as pb
from clag.v1 import types_pb2
from google.protobuf.field_mask_pb2 import FieldMask

from clag_client.calls import UnaryCalls
from clag_client.errors import ClagError
from clag_client.retry import Outage, RetryPolicy

if TYPE_CHECKING:
    from clag.v1.admin_service_pb2_grpc import AdminServiceAsyncStub  # exists for type checkers only
    from clag.v1.cluster_service_pb2_grpc import ClusterServiceAsyncStub  # exists for type checkers only

    from clag_client.aio import AsyncClient
    from clag_client.loop import Loop

__all__ = ["AsyncClusterCalls", "EditOptions", "SyncClusterCalls"]

T = TypeVar("T")


class EditOptions(TypedDict, total=False):
    """What all edits of clusters take.

    Keys:
        request_id: makes repeating the call safe for 24 hours: the same id with the same request returns the first
            answer. A new one by default, under which the client repeats the call when the connection breaks.
        validate_only: checks and previews the edit, and changes nothing.
        etag: must be the current one of the edited cluster (merge, move: of the target); "" for any.
        timeout_s: deadline of each try, in seconds.
    """

    request_id: str
    validate_only: bool
    etag: str
    timeout_s: float


class AsyncClusterCalls(UnaryCalls):
    """Methods of `AsyncClient`. Every one raises `ClagError` when the call fails."""

    admin: AdminServiceAsyncStub
    clusters: ClusterServiceAsyncStub
    _retry: RetryPolicy

    async def list_clusters(
        self, namespace: str, *, include_archived: bool = False, page_size: int = 0
    ) -> AsyncIterator[types_pb2.Cluster]:
        """Yield all clusters, page by page."""
        request = pb.ListClustersRequest(
            namespace=namespace, include_archived=include_archived, page_size=page_size
        )
        while True:
            page = await self._unary(self.clusters.ListClusters, request, None)
            for cluster in page.clusters:
                yield cluster
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def get_cluster(
        self, namespace: str, cluster_id: str, *, timeout_s: float | None = None
    ) -> types_pb2.Cluster:
        """Read one cluster."""
        request = pb.GetClusterRequest(namespace=namespace, cluster_id=cluster_id)
        return (await self._unary(self.clusters.GetCluster, request, timeout_s)).cluster

    async def cluster_history(
        self, namespace: str, cluster_id: str, *, page_size: int = 0
    ) -> AsyncIterator[pb.ClusterHistoryEntry]:
        """Yield what happened to a cluster, newest first; also to one that is gone."""
        request = pb.ListClusterHistoryRequest(namespace=namespace, cluster_id=cluster_id, page_size=page_size)
        while True:
            page = await self._unary(self.clusters.ListClusterHistory, request, None)
            for entry in page.entries:
                yield entry
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def update_cluster(
        self,
        namespace: str,
        cluster_id: str,
        *,
        title: str | None = None,
        summary: str | None = None,
        tags: Sequence[str] | None = None,
        pinned: bool | None = None,
        **options: Unpack[EditOptions],
    ) -> pb.UpdateClusterResponse:
        """Rename, re-describe, pin or unpin a cluster; what is None stays."""
        given = {"title": title, "summary": summary, "tags": tags, "pinned": pinned}
        paths = [field for field, value in given.items() if value is not None]
        values: dict[str, Any] = {field: given[field] for field in paths}
        request = pb.UpdateClusterRequest(
            edit=_edit(namespace, options),
            cluster_id=cluster_id,
            cluster=types_pb2.Cluster(**values),
            update_mask=FieldMask(paths=paths),
        )
        return await self._repeated(self.clusters.UpdateCluster, request, options)

    async def merge_clusters(
        self, namespace: str, target: str, sources: Sequence[str], **options: Unpack[EditOptions]
    ) -> pb.MergeClustersResponse:
        """Move all memories of the sources into the target and remove the sources."""
        request = pb.MergeClustersRequest(
            edit=_edit(namespace, options), target_cluster_id=target, source_cluster_ids=sources
        )
        return await self._repeated(self.clusters.MergeClusters, request, options)

    async def split_cluster(
        self,
        namespace: str,
        cluster_id: str,
        how: int | Sequence[pb.MemoryGroup],
        **options: Unpack[EditOptions],
    ) -> pb.SplitClusterResponse:
        """Split a cluster.

        Args:
            namespace: where it is.
            cluster_id: the cluster; it keeps its id as the first part.
            how: into this many parts by likeness, or by listed groups, each of which becomes a cluster.
            options: see `EditOptions`.
        """
        request = pb.SplitClusterRequest(edit=_edit(namespace, options), cluster_id=cluster_id)
        if isinstance(how, int):
            request.parts = how
        else:
            request.groups.CopyFrom(pb.MemoryGroups(groups=how))
        return await self._repeated(self.clusters.SplitCluster, request, options)

    async def move_memories(
        self, namespace: str, target: str, memory_ids: Sequence[str], **options: Unpack[EditOptions]
    ) -> pb.MoveMemoriesResponse:
        """Move memories, at most 1,000, to another cluster; all or none."""
        request = pb.MoveMemoriesRequest(
            edit=_edit(namespace, options), target_cluster_id=target, memory_ids=memory_ids
        )
        return await self._repeated(self.clusters.MoveMemories, request, options)

    async def archive_cluster(
        self, namespace: str, cluster_id: str, *, archived: bool = True, **options: Unpack[EditOptions]
    ) -> pb.ArchiveClusterResponse:
        """Take a cluster out of default retrieval, or (`archived=False`) back into it."""
        request = pb.ArchiveClusterRequest(edit=_edit(namespace, options), cluster_id=cluster_id, archived=archived)
        return await self._repeated(self.clusters.ArchiveCluster, request, options)

    async def reorganize(
        self,
        namespace: str,
        *,
        dry_run: bool = False,
        target_clusters: int = 0,
        cluster_ids: Sequence[str] = (),
        request_id: str = "",
        timeout_s: float | None = None,
    ) -> admin_pb.Operation:
        """Begin a re-organization of the clusters of a namespace; returns the operation, which goes on by itself.

        Args:
            namespace: whose clusters.
            dry_run: makes the plan, tells it as the operation's result, and changes nothing.
            target_clusters: about how many clusters to aim for; 0 leaves it to the memories.
            cluster_ids: clusters to look at; all when empty. Pinned ones are left as they are.
            request_id: makes repeating the call safe for 24 hours. A new one by default.
            timeout_s: deadline of each try, in seconds.
        """
        request = admin_pb.ReorganizeRequest(
            namespace=namespace,
            request_id=request_id or uuid.uuid4().hex,
            dry_run=dry_run,
            target_clusters=target_clusters,
            cluster_ids=cluster_ids,
        )
        options = EditOptions() if timeout_s is None else EditOptions(timeout_s=timeout_s)
        return (await self._repeated(self.admin.Reorganize, request, options)).operation

    async def _repeated(
        self, method: grpc.aio.UnaryUnaryMultiCallable[Any, T], request: object, options: EditOptions
    ) -> T:
        """Make an edit's call, again while the server is away: its request id makes it one edit."""
        outage = Outage(self._retry)
        while True:
            try:
                return await self._unary(method, request, options.get("timeout_s"))
            except ClagError as error:
                await outage.wait(error, forward=False)


class SyncClusterCalls:
    """Methods of `Client`, as those of `AsyncClusterCalls`."""

    _client: AsyncClient
    _loop: Loop

    def list_clusters(self, namespace: str, *, include_archived: bool = False) -> Iterator[types_pb2.Cluster]:
        """Yield all clusters."""
        return self._loop.iterate(self._client.list_clusters(namespace, include_archived=include_archived))

    def get_cluster(self, namespace: str, cluster_id: str) -> types_pb2.Cluster:
        """Read one cluster."""
        return self._loop.run(self._client.get_cluster(namespace, cluster_id))

    def cluster_history(self, namespace: str, cluster_id: str) -> Iterator[pb.ClusterHistoryEntry]:
        """Yield what happened to a cluster, newest first; also to one that is gone."""
        return self._loop.iterate(self._client.cluster_history(namespace, cluster_id))

    def update_cluster(
        self,
        namespace: str,
        cluster_id: str,
        *,
        title: str | None = None,
        summary: str | None = None,
        tags: Sequence[str] | None = None,
        pinned: bool | None = None,
        **options: Unpack[EditOptions],
    ) -> pb.UpdateClusterResponse:
        """Rename, re-describe, pin or unpin a cluster; what is None stays."""
        return self._loop.run(
            self._client.update_cluster(
                namespace, cluster_id, title=title, summary=summary, tags=tags, pinned=pinned, **options
            )
        )

    def merge_clusters(
        self, namespace: str, target: str, sources: Sequence[str], **options: Unpack[EditOptions]
    ) -> pb.MergeClustersResponse:
        """Move all memories of the sources into the target and remove the sources."""
        return self._loop.run(self._client.merge_clusters(namespace, target, sources, **options))

    def split_cluster(
        self,
        namespace: str,
        cluster_id: str,
        how: int | Sequence[pb.MemoryGroup],
        **options: Unpack[EditOptions],
    ) -> pb.SplitClusterResponse:
        """Split a cluster into a number of parts by likeness, or by listed groups."""
        return self._loop.run(self._client.split_cluster(namespace, cluster_id, how, **options))

    def move_memories(
        self, namespace: str, target: str, memory_ids: Sequence[str], **options: Unpack[EditOptions]
    ) -> pb.MoveMemoriesResponse:
        """Move memories, at most 1,000, to another cluster; all or none."""
        return self._loop.run(self._client.move_memories(namespace, target, memory_ids, **options))

    def archive_cluster(
        self, namespace: str, cluster_id: str, *, archived: bool = True, **options: Unpack[EditOptions]
    ) -> pb.ArchiveClusterResponse:
        """Take a cluster out of default retrieval, or (`archived=False`) back into it."""
        return self._loop.run(self._client.archive_cluster(namespace, cluster_id, archived=archived, **options))

    def reorganize(
        self,
        namespace: str,
        *,
        dry_run: bool = False,
        target_clusters: int = 0,
        cluster_ids: Sequence[str] = (),
        request_id: str = "",
    ) -> admin_pb.Operation:
        """Begin a re-organization of clusters; returns the operation, which goes on by itself."""
        return self._loop.run(
            self._client.reorganize(
                namespace,
                dry_run=dry_run,
                target_clusters=target_clusters,
                cluster_ids=cluster_ids,
                request_id=request_id,
            )
        )


def _edit(namespace: str, options: EditOptions) -> pb.Edit:
    return pb.Edit(
        namespace=namespace,
        request_id=options.get("request_id") or uuid.uuid4().hex,
        validate_only=options.get("validate_only", False),
        etag=options.get("etag", ""),
    )
