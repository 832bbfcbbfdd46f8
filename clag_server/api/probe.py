"""The competence probe at the edge."""

# ruff: noqa: N802 - methods have the names of the contract

from __future__ import annotations

from clag.v1 import admin_service_pb2 as pb

from clag_server.api.convert_operation import operation_to
from clag_server.api.interceptors.guard import Context
from clag_server.memory.service import MemoryService

__all__ = ["ProbeCalls"]


class ProbeCalls:
    """The part of AdminService that is about the competence probe."""

    _service: MemoryService

    async def RunProbe(self, _request: pb.RunProbeRequest, _context: Context) -> pb.RunProbeResponse:
        """Begin a probe of the SLM; while one runs, answer with that one."""
        return pb.RunProbeResponse(operation=operation_to(await self._service.probing.begin()))
