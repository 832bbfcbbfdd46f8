"""Scene signals at the edge."""

# ruff: noqa: N802 - methods have the names of the contract

from __future__ import annotations

from clag.v1 import memory_service_pb2 as pb

from clag_server.api.convert_values import episode_id, revision
from clag_server.api.interceptors.guard import Context
from clag_server.memory.scenes import SceneSignal
from clag_server.memory.service import MemoryService

__all__ = ["SceneCalls"]


class SceneCalls:
    """The part of MemoryService that takes signals."""

    _service: MemoryService

    async def SignalScene(self, request: pb.SignalSceneRequest, _context: Context) -> pb.SignalSceneResponse:
        """Close a session's open episode."""
        closed = await self._service.scenes.signal(
            request.namespace, request.session_id, SceneSignal(request.signal)
        )
        return pb.SignalSceneResponse(
            closed_episode_id="" if closed.episode is None else episode_id(closed.episode),
            operation_id=closed.operation_id,
            revision=revision(request.namespace, closed.revision),
        )
