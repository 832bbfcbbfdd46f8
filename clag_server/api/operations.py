"""Long-running operations at the edge."""

from __future__ import annotations

from clag_server.memory.service import MemoryService

__all__ = ["OperationCalls"]


class OperationCalls:
    """The part of AdminService that is about operations."""

    _service: MemoryService
