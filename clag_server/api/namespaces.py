"""Namespaces at the edge."""

# ruff: noqa: N802 - methods have the names of the contract

from __future__ import annotations

from clag.v1 import admin_service_pb2 as pb

from clag_server.api.convert_admin import namespace_to
from clag_server.api.convert_namespace import revision_of_settings, settings_from
from clag_server.api.convert_operation import operation_to
from clag_server.api.interceptors.guard import Context
from clag_server.api.limits import page_size
from clag_server.api.paging import page_token, resume_after, scope_of
from clag_server.memory.service import MemoryService

__all__ = ["NamespaceCalls"]


class NamespaceCalls:
    """The part of AdminService that is about namespaces."""

    _service: MemoryService

    async def CreateNamespace(
        self, request: pb.CreateNamespaceRequest, _context: Context
    ) -> pb.CreateNamespaceResponse:
        """Create a namespace."""
        created = await self._service.whole.create(
            request.namespace, settings_from(request.settings), embedding_model=request.embedding_model
        )
        return pb.CreateNamespaceResponse(namespace=namespace_to(created))

    async def GetNamespace(self, request: pb.GetNamespaceRequest, _context: Context) -> pb.GetNamespaceResponse:
        """Read one namespace."""
        return pb.GetNamespaceResponse(namespace=namespace_to(await self._service.whole.get(request.namespace)))

    async def ListNamespaces(
        self, request: pb.ListNamespacesRequest, _context: Context
    ) -> pb.ListNamespacesResponse:
        """Page through namespaces, by name."""
        scope = scope_of("ListNamespaces")
        after = resume_after(scope, request.page_token)
        found = await self._service.whole.list()
        waiting = sorted((namespace for namespace in found if namespace.name > after), key=lambda n: n.name)
        shown = waiting[: page_size(request.page_size)]
        more = len(waiting) > len(shown)
        return pb.ListNamespacesResponse(
            namespaces=[namespace_to(namespace) for namespace in shown],
            next_page_token=page_token(scope, shown[-1].name if more else None),
        )

    async def UpdateNamespace(
        self, request: pb.UpdateNamespaceRequest, _context: Context
    ) -> pb.UpdateNamespaceResponse:
        """Change settings of a namespace."""
        updated = await self._service.whole.update(
            request.namespace, revision_of_settings(request), etag=request.etag
        )
        return pb.UpdateNamespaceResponse(namespace=namespace_to(updated))

    async def DeleteNamespace(
        self, request: pb.DeleteNamespaceRequest, _context: Context
    ) -> pb.DeleteNamespaceResponse:
        """Begin the deletion of a namespace."""
        begun = await self._service.whole.delete(request.namespace)
        return pb.DeleteNamespaceResponse(operation=operation_to(begun))
