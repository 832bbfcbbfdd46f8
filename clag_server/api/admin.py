"""AdminService at the edge: namespaces, counters, the server itself."""

# ruff: noqa: N802 - methods have the names of the contract

from __future__ import annotations

import time
from collections.abc import Sequence

from clag.v1 import admin_service_pb2 as pb

from clag_server.api.convert_admin import namespace_to, server_info_to
from clag_server.api.convert_stats import stats_to
from clag_server.api.convert_values import revision
from clag_server.api.facts import ServerFacts
from clag_server.api.interceptors.guard import Context
from clag_server.api.limits import page_size
from clag_server.api.paging import page_token, resume_after, scope_of
from clag_server.api.unserved import serves, unserved_methods
from clag_server.memory.service import MemoryService, SystemStats
from clag_server.types.errors import NotFound

__all__ = ["AdminServicer"]

SERVICE = "AdminService"


@serves(SERVICE)
class AdminServicer:
    """Tells how the server stands.

    Args:
        service: The domain.
        facts: The server.
    """

    def __init__(self, service: MemoryService, facts: ServerFacts) -> None:
        self._service = service
        self._facts = facts

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

    async def GetStats(self, request: pb.GetStatsRequest, _context: Context) -> pb.GetStatsResponse:
        """Count; without a namespace, over all of them."""
        if request.namespace:
            stats: Sequence[SystemStats] = [await self._service.stats(request.namespace)]
        else:
            stats = [await self._service.stats(n.name) for n in await self._service.namespaces()]
        response = stats_to(
            request.namespace,
            stats,
            stores=await self._service.store_stats(),
            open_streams=self._facts.streams.of(request.namespace),
            now_ns=time.time_ns(),
        )
        if request.namespace:
            response.revision.CopyFrom(revision(request.namespace, stats[0].rows.revision))
        return response

    async def GetServerInfo(self, _request: pb.GetServerInfoRequest, _context: Context) -> pb.GetServerInfoResponse:
        """Say what this server is, has and allows."""
        return server_info_to(self._facts, unimplemented=unserved_methods())
