"""Re-organization at the edge."""

# ruff: noqa: N802 - methods have the names of the contract

from __future__ import annotations

from clag.v1 import admin_service_pb2 as pb

from clag_server.api.convert_operation import operation_to
from clag_server.api.convert_values import cluster_number
from clag_server.api.interceptors.guard import Context
from clag_server.memory.reorganizing.service import ReorganizeRequest
from clag_server.memory.service import MemoryService
from clag_server.types.errors import NotFound

__all__ = ["ReorganizeCalls"]


class ReorganizeCalls:
    """The part of AdminService that re-organizes."""

    _service: MemoryService

    async def Reorganize(self, request: pb.ReorganizeRequest, _context: Context) -> pb.ReorganizeResponse:
        """Begin a re-organization, or the planning of one."""
        asked = ReorganizeRequest(
            dry_run=request.dry_run,
            target=request.target_clusters,
            clusters=tuple(_number(given) for given in request.cluster_ids),
        )
        begun = await self._service.reorganizing.begin(request.namespace, asked, request_id=request.request_id)
        return pb.ReorganizeResponse(operation=operation_to(begun))


def _number(given: str) -> int:
    number = cluster_number(given)
    if number is None:
        raise NotFound("cluster", given)
    return number
