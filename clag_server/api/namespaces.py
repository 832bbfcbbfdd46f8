"""Namespaces at the edge."""

# ruff: noqa: N802 - methods have the names of the contract

from __future__ import annotations

from clag.v1 import admin_service_pb2 as pb

from clag_server.api.convert_admin import namespace_to
from clag_server.api.interceptors.guard import Context
from clag_server.api.limits import page_size
from clag_server.api.paging import page_token, resume_after, scope_of
from clag_server.memory.service import MemoryService
from clag_server.types.errors import NotFound

__all__ = ["NamespaceCalls"]


class NamespaceCalls:
    """The part of AdminService that is about namespaces."""

    _service: MemoryService

    async def GetNamespace(self, request: pb.GetNamespaceRequest, _context: Context) -> pb.GetNamespaceResponse:
        """Read one namespace."""
        for namespace in await self._service.namespaces():
            if namespace.name == request.namespace:
                return pb.GetNamespaceResponse(namespace=namespace_to(namespace))
        raise NotFound("namespace", request.namespace)

    async def ListNamespaces(
        self, request: pb.ListNamespacesRequest, _context: Context
    ) -> pb.ListNamespacesResponse:
        """Page through namespaces, by name."""
        scope = scope_of("ListNamespaces")
        after = resume_after(scope, request.page_token)
        found = await self._service.namespaces()
        waiting = sorted((namespace for namespace in found if namespace.name > after), key=lambda n: n.name)
        shown = waiting[: page_size(request.page_size)]
        more = len(waiting) > len(shown)
        return pb.ListNamespacesResponse(
            namespaces=[namespace_to(namespace) for namespace in shown],
            next_page_token=page_token(scope, shown[-1].name if more else None),
        )
