"""Updates and deletes at the edge."""

# ruff: noqa: N802 - methods have the names of the contract

from __future__ import annotations

from clag.v1 import memory_service_pb2 as pb

from clag_server.api.convert_values import revision
from clag_server.api.interceptors.guard import Context
from clag_server.memory.service import MemoryService
from clag_server.types.errors import NotFound

__all__ = ["EditCalls"]


class EditCalls:
    """The part of MemoryService that changes and removes memories."""

    _service: MemoryService

    async def DeleteMemory(self, request: pb.DeleteMemoryRequest, _context: Context) -> pb.DeleteMemoryResponse:
        """Delete one memory."""
        try:
            number = await self._service.delete_memory(
                request.namespace, request.memory_id, etag=request.etag, allow_missing=False
            )
        except NotFound as missing:
            # The domain's own allow_missing would not say whether there was one.
            if request.allow_missing and missing.kind == "memory":
                return pb.DeleteMemoryResponse(deleted=False)
            raise
        return pb.DeleteMemoryResponse(deleted=True, revision=revision(request.namespace, number))
