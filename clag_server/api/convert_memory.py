"""Memories between protobuf and domain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from clag.v1 import types_pb2

from clag_server.api.convert_values import (
    attribute_to,
    attributes_from,
    cluster_id,
    embedding_from,
    episode_id,
    revision,
    time_from,
    time_to,
)
from clag_server.memory.weighing import z_scores
from clag_server.types.memory import Memory, MemoryKind, NewMemory, RoutingCandidate, RoutingDecision

if TYPE_CHECKING:
    from clag.v1.types_pb2 import AnnotationSource, FallbackCause, LinkKind, RoutingDecider
    from clag.v1.types_pb2 import MemoryKind as KindPb
    from clag.v1.types_pb2 import MemoryState as StatePb

__all__ = ["etag", "memory_to", "new_memory_from"]

DEFAULT_IMPORTANCE = 0.5
"""`Memory.importance` where the client gave none (contract)."""


def new_memory_from(message: types_pb2.MemoryInput, *, dim: int | None, prefix: str = "") -> NewMemory:
    """A memory to store, from a message that passed the schema's rules.

    Args:
        message: The caller's memory.
        dim: Dimension of the namespace's index, None when not known yet.
        prefix: Path of the message in the request, with its dot ("memory."), for errors.

    Raises:
        EmbeddingShape: The embedding does not fit the index.
    """
    return NewMemory(
        text=message.text,
        memory_id=message.memory_id,
        kind=MemoryKind(message.kind),
        task=message.task,
        speaker=message.speaker,
        session_id=message.session_id,
        tags=tuple(message.tags),
        attributes=attributes_from(message.attributes),
        importance=message.importance if message.HasField("importance") else DEFAULT_IMPORTANCE,
        event_time_ns=time_from(message.event_time) if message.HasField("event_time") else None,
        expire_time_ns=time_from(message.expire_time) if message.HasField("expire_time") else None,
        supersedes=tuple(message.supersedes),
        embedding=embedding_from(message.embedding, dim=dim, field=f"{prefix}embedding"),
    )


def etag(number: int) -> str:
    """Entity tag of the thing that was last changed at a revision."""
    return str(number)


def memory_to(namespace: str, memory: Memory) -> types_pb2.Memory:
    """The message of a stored memory; it carries its embedding when the domain gave one."""
    message = types_pb2.Memory(
        memory_id=memory.memory_id,
        text=memory.text,
        kind=cast("KindPb.ValueType", int(memory.kind)),
        task=memory.task,
        speaker=memory.speaker,
        session_id=memory.session_id,
        tags=memory.tags,
        importance=DEFAULT_IMPORTANCE if memory.importance is None else memory.importance,
        event_time=time_to(memory.event_time_ns),
        supersedes=memory.supersedes,
        client_embedding=memory.client_embedding,
        session_position=memory.session_position,
        create_time=time_to(memory.create_time_ns),
        update_time=time_to(memory.update_time_ns),
        state=cast("StatePb.ValueType", int(memory.state)),
        state_reason=memory.error,
        cluster_id=cluster_id(memory.cluster),
        episode_id=episode_id(memory.episode),
        context=memory.context,
        keywords=memory.keywords,
        evolved_tags=memory.evolved_tags,
        annotated_by=cast("AnnotationSource.ValueType", int(memory.annotated_by)),
        links=[
            types_pb2.MemoryLink(
                memory_id=link.memory_id,
                kind=cast("LinkKind.ValueType", int(link.kind)),
                reason=link.reason,
                similarity=link.similarity,
            )
            for link in memory.links
        ],
        confidence=memory.confidence,
        superseded_by=memory.superseded_by,
        access_count=memory.access_count,
        etag=etag(memory.revision),
        revision=revision(namespace, memory.revision),
    )
    for key, value in memory.attributes.items():
        message.attributes[key].CopyFrom(attribute_to(value))
    if memory.expire_time_ns is not None:
        message.expire_time.CopyFrom(time_to(memory.expire_time_ns))
    if memory.last_access_time_ns is not None:
        message.last_access_time.CopyFrom(time_to(memory.last_access_time_ns))
    if memory.embedding is not None:
        message.embedding.extend(memory.embedding.tolist())
    if memory.routing is not None:
        message.routing.CopyFrom(_routing(memory.routing, memory.cluster))
    return message


def _routing(routing: RoutingDecision, chosen: int | None) -> types_pb2.RoutingDecision:
    cosines = z_scores([candidate.cosine for candidate in routing.candidates])
    channels = _channel_z(routing.candidates)
    return types_pb2.RoutingDecision(
        decided_by=cast("RoutingDecider.ValueType", int(routing.decided_by)),
        provisional=routing.provisional,
        founded_cluster=routing.founded,
        candidates=[
            types_pb2.RoutingCandidate(
                cluster_id=cluster_id(candidate.cluster),
                title=candidate.title,
                cosine=candidate.cosine,
                cosine_z=cosine_z,
                channel_score=candidate.channel,
                channel_z=channel_z,
                combined=candidate.combined,
                chosen=candidate.cluster == chosen,
            )
            for candidate, cosine_z, channel_z in zip(routing.candidates, cosines, channels, strict=True)
        ],
        slm_weight=routing.slm_weight,
        fallback=cast("FallbackCause.ValueType", int(routing.fallback)),
        reason=routing.reason,
        decide_time=time_to(routing.time_ns),
    )


def _channel_z(candidates: Sequence[RoutingCandidate]) -> list[float | None]:
    """Standard scores of the votes; None for every candidate unless all have one."""
    votes = [candidate.channel for candidate in candidates if candidate.channel is not None]
    if len(votes) != len(candidates):
        return [None] * len(candidates)
    return list(z_scores(votes))
