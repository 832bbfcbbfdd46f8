"""Links and routing decisions from protobuf to domain."""

from __future__ import annotations

from clag.v1 import types_pb2

from clag_server.api.convert_values import cluster_number, time_from
from clag_server.types.memory import (
    DecidedBy,
    FallbackCause,
    Link,
    LinkKind,
    RoutingCandidate,
    RoutingDecision,
)

__all__ = ["link_from", "routing_from"]


def link_from(message: types_pb2.MemoryLink) -> Link:
    """A link to another memory."""
    kind = LinkKind(message.kind) if message.kind else LinkKind.SIMILAR
    return Link(message.memory_id, kind, message.reason, message.similarity)


def routing_from(message: types_pb2.RoutingDecision) -> RoutingDecision | None:
    """A decision that names clusters by the numbers in their ids; None when nobody decided."""
    if not message.decided_by:
        return None
    candidates = tuple(
        RoutingCandidate(
            cluster=number,
            title=candidate.title,
            cosine=candidate.cosine,
            channel=candidate.channel_score if candidate.HasField("channel_score") else None,
            combined=candidate.combined,
        )
        for candidate in message.candidates
        if (number := cluster_number(candidate.cluster_id)) is not None
    )
    voted = [candidate for candidate in candidates if candidate.channel is not None]
    return RoutingDecision(
        decided_by=DecidedBy(message.decided_by),
        candidates=candidates,
        vote=max(voted, key=lambda c: c.channel or 0.0).cluster
        if len(voted) == len(candidates) and voted
        else None,
        reason=message.reason,
        provisional=message.provisional,
        time_ns=time_from(message.decide_time),
        founded=message.founded_cluster,
        fallback=FallbackCause(message.fallback),
        slm_weight=message.slm_weight,
    )
