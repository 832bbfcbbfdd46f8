"""ClusterService at the edge."""

# ruff: noqa: N802 - methods have the names of the contract

from __future__ import annotations

from clag.v1 import cluster_service_pb2 as pb

from clag_server.api.cluster_edits import ClusterEditCalls
from clag_server.api.convert_cluster import cluster_to
from clag_server.api.convert_values import cluster_number, fresh_revision, revision
from clag_server.api.interceptors.guard import Context
from clag_server.api.limits import page_size
from clag_server.api.paging import page_token, resume_after_number, scope_of
from clag_server.api.unserved import serves
from clag_server.memory.cluster_service import ClusterService
from clag_server.memory.service import MemoryService
from clag_server.types.errors import NotFound

__all__ = ["ClusterServicer"]

SERVICE = "ClusterService"


@serves(SERVICE)
class ClusterServicer(ClusterEditCalls):
    """Reads and edits clusters.

    Args:
        service: The domain, for reading.
        edits: The domain, for editing.
    """

    def __init__(self, service: MemoryService, edits: ClusterService) -> None:
        super().__init__(edits)
        self._service = service

    async def GetCluster(self, request: pb.GetClusterRequest, _context: Context) -> pb.GetClusterResponse:
        """Read one cluster."""
        fresh_revision(request.namespace, request.read)
        number = cluster_number(request.cluster_id)
        if number is None:
            raise NotFound("cluster", request.cluster_id)
        view, read_at = await self._service.get_cluster(request.namespace, number)
        return pb.GetClusterResponse(
            cluster=cluster_to(request.namespace, view), read_at=revision(request.namespace, read_at)
        )

    async def ListClusters(self, request: pb.ListClustersRequest, _context: Context) -> pb.ListClustersResponse:
        """Page through clusters in order of their founding (their numbers)."""
        fresh_revision(request.namespace, request.read)
        scope = scope_of("ListClusters", request.namespace, request.include_archived)
        after = resume_after_number(scope, request.page_token, start=-1)
        views, read_at = await self._service.list_clusters(
            request.namespace, include_archived=request.include_archived
        )
        waiting = sorted((v for v in views if v.cluster.cluster > after), key=lambda view: view.cluster.cluster)
        shown = waiting[: page_size(request.page_size)]
        more = len(waiting) > len(shown)
        return pb.ListClustersResponse(
            clusters=[cluster_to(request.namespace, view) for view in shown],
            next_page_token=page_token(scope, shown[-1].cluster.cluster if more else None),
            read_at=revision(request.namespace, read_at),
        )
