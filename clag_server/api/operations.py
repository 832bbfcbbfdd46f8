"""Long-running operations at the edge."""

# ruff: noqa: N802 - methods have the names of the contract

from __future__ import annotations

from contextlib import aclosing

from clag.v1 import admin_service_pb2 as pb

from clag_server.api.convert_operation import operation_to
from clag_server.api.convert_reorganize import in_list
from clag_server.api.interceptors.drain import DrainGate
from clag_server.api.interceptors.guard import Context
from clag_server.api.limits import page_size
from clag_server.api.open_calls import until_drained
from clag_server.api.paging import page_token, resume_after, scope_of
from clag_server.memory.service import MemoryService

__all__ = ["OperationCalls"]


class OperationCalls:
    """The part of AdminService that is about operations."""

    _service: MemoryService
    _gate: DrainGate

    async def Reindex(self, request: pb.ReindexRequest, _context: Context) -> pb.ReindexResponse:
        """Begin a rebuild of the vector index, or a re-embedding."""
        begun = await self._service.reindexing.begin(request.namespace, embedding_model=request.embedding_model)
        return pb.ReindexResponse(operation=operation_to(begun))

    async def GetOperation(self, request: pb.GetOperationRequest, _context: Context) -> pb.GetOperationResponse:
        """Read an operation."""
        found = await self._service.operations.get(request.operation_id)
        return pb.GetOperationResponse(operation=operation_to(found))

    async def ListOperations(
        self, request: pb.ListOperationsRequest, _context: Context
    ) -> pb.ListOperationsResponse:
        """Page through operations, newest first."""
        scope = scope_of("ListOperations", request.namespace)
        before = resume_after(scope, request.page_token)
        ns = (await self._service.whole.get(request.namespace)).ns if request.namespace else None
        size = page_size(request.page_size)
        found = await self._service.operations.list(ns=ns, before=before, limit=size + 1)
        shown = found[:size]
        return pb.ListOperationsResponse(
            operations=[in_list(operation_to(operation)) for operation in shown],
            next_page_token=page_token(scope, shown[-1].operation_id if len(found) > size else None),
        )

    async def CancelOperation(
        self, request: pb.CancelOperationRequest, _context: Context
    ) -> pb.CancelOperationResponse:
        """Ask an operation to stop."""
        asked = await self._service.operations.cancel(request.operation_id)
        return pb.CancelOperationResponse(operation=operation_to(asked))

    async def WatchOperation(self, request: pb.WatchOperationRequest, context: Context) -> None:
        """Stream the progress of an operation until it ended."""
        await until_drained(self._gate, self._watch(request.operation_id, context))

    async def _watch(self, operation_id: str, context: Context) -> None:
        async with aclosing(self._service.operations.watch(operation_id)) as states:
            async for operation in states:
                await context.write(pb.WatchOperationResponse(operation=operation_to(operation)))
