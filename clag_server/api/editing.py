"""Updates and deletes at the edge."""

# ruff: noqa: N802 - methods have the names of the contract

from __future__ import annotations

from typing import Final

from clag.v1 import memory_service_pb2 as pb

from clag_server.api.convert_filter import filter_from
from clag_server.api.convert_memory import memory_to
from clag_server.api.convert_update import change_from
from clag_server.api.convert_values import revision
from clag_server.api.facts import ServerFacts
from clag_server.api.interceptors.guard import Context
from clag_server.memory.service import MemoryService
from clag_server.types.errors import NotFound

__all__ = ["EditCalls"]

_SHARE_OF_DEADLINE: Final = 0.9
"""Part of a call's time that a delete of many works for; the rest is for the answer's way back."""


class EditCalls:
    """The part of MemoryService that changes and removes memories."""

    _service: MemoryService
    _facts: ServerFacts

    async def UpdateMemory(self, request: pb.UpdateMemoryRequest, _context: Context) -> pb.UpdateMemoryResponse:
        """Change fields of one memory."""
        change = change_from(request, dim=self._facts.embedding_dim())
        updated = await self._service.edits.update(request.namespace, request.memory_id, change)
        return pb.UpdateMemoryResponse(
            memory=memory_to(request.namespace, updated.memory),
            revision=revision(request.namespace, updated.revision),
        )

    async def DeleteMemory(self, request: pb.DeleteMemoryRequest, _context: Context) -> pb.DeleteMemoryResponse:
        """Delete one memory."""
        try:
            number = await self._service.edits.delete(request.namespace, request.memory_id, etag=request.etag)
        except NotFound as missing:
            if request.allow_missing and missing.kind == "memory":
                return pb.DeleteMemoryResponse(deleted=False)
            raise
        return pb.DeleteMemoryResponse(deleted=True, revision=revision(request.namespace, number))

    async def DeleteMemories(
        self, request: pb.DeleteMemoriesRequest, context: Context
    ) -> pb.DeleteMemoriesResponse:
        """Delete all memories that match, as far as the call's time goes."""
        remaining = context.time_remaining()
        limit = self._facts.unary_deadline_s
        done = await self._service.edits.delete_matching(
            request.namespace,
            filter_from(request.filter),
            dry_run=request.dry_run,
            within_s=_SHARE_OF_DEADLINE * (limit if remaining is None else min(limit, remaining)),
        )
        return pb.DeleteMemoriesResponse(
            matched=done.matched,
            deleted=done.deleted,
            complete=done.complete,
            revision=revision(request.namespace, done.revision),
        )
