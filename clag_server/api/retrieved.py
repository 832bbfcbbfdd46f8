"""A retrieval as frames, and the time it has: what Retrieve, GetContext, RetrieveStream and Answer share."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from clag.v1 import memory_service_pb2 as pb

from clag_server.api.convert_retrieve import frames_of
from clag_server.api.facts import ServerFacts
from clag_server.api.interceptors.guard import Context
from clag_server.memory.closing import closed_after
from clag_server.memory.service import MemoryService
from clag_server.types.retrieval import RetrieveQuery

__all__ = ["retrieved", "time_left_s"]


async def retrieved(service: MemoryService, query: RetrieveQuery) -> AsyncGenerator[pb.RetrieveResponse, None]:
    """Yield the frames of a retrieval; close it to end the retrieval early."""
    async with closed_after(service.retrieve(query)) as stages:
        async for stage in stages:
            for frame in frames_of(query.namespace, stage, explain=query.explain):
                yield frame


def time_left_s(context: Context, facts: ServerFacts, *, unary: bool = False) -> float | None:
    """Return the seconds until the caller gives up, or we do (calls that are not streams); None for never."""
    remaining: float | None = context.time_remaining()
    limits = [] if remaining is None else [remaining]
    if unary:
        limits.append(facts.unary_deadline_s)
    return min(limits, default=None)
