"""AdminService at the edge: counters and the server itself here, each other group of calls in a file of its own."""

# ruff: noqa: N802 - methods have the names of the contract

from __future__ import annotations

import time
from collections.abc import Sequence

from clag.v1 import admin_service_pb2 as pb

from clag_server.api.convert_admin import server_info_to
from clag_server.api.convert_stats import stats_to
from clag_server.api.convert_values import revision
from clag_server.api.export import ExportCalls
from clag_server.api.facts import ServerFacts
from clag_server.api.import_ import ImportCalls
from clag_server.api.interceptors.drain import DrainGate
from clag_server.api.interceptors.guard import Context
from clag_server.api.namespaces import NamespaceCalls
from clag_server.api.operations import OperationCalls
from clag_server.api.probe import ProbeCalls
from clag_server.api.reorganize import ReorganizeCalls
from clag_server.api.unserved import serves, unserved_methods
from clag_server.memory.feeds import Feeds
from clag_server.memory.service import MemoryService, SystemStats

__all__ = ["AdminServicer"]

SERVICE = "AdminService"


@serves(SERVICE)
class AdminServicer(NamespaceCalls, OperationCalls, ReorganizeCalls, ProbeCalls, ExportCalls, ImportCalls):
    """Tells how the server stands.

    Args:
        service: The domain.
        facts: The server.
        gate: Tells open streams when the server drains.
    """

    def __init__(self, service: MemoryService, facts: ServerFacts, gate: DrainGate, feeds: Feeds) -> None:
        self._service = service
        self._facts = facts
        self._gate = gate
        self._feeds = feeds

    async def GetStats(self, request: pb.GetStatsRequest, _context: Context) -> pb.GetStatsResponse:
        """Count; without a namespace, over all of them."""
        if request.namespace:
            stats: Sequence[SystemStats] = [await self._service.stats(request.namespace)]
        else:
            stats = [await self._service.stats(n.name) for n in await self._service.namespaces() if not n.deleting]
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
