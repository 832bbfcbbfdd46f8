"""Questions and the stages of their answers between protobuf and domain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from clag.v1 import memory_service_pb2 as pb
from google.protobuf.message import Message

from clag_server.api.convert_filter import filter_from
from clag_server.api.convert_memory import memory_to
from clag_server.api.convert_values import cluster_id, duration, embedding_from, fresh_revision, revision
from clag_server.api.limits import HITS_PER_FRAME_BYTES, MAX_CANDIDATES
from clag_server.types.retrieval import (
    AssembledContext,
    ClusterSelection,
    ContextFormat,
    MemoryHit,
    MemoryHits,
    RetrieveDone,
    RetrieveMode,
    RetrieveQuery,
    RetrieveStage,
    SearchSpace,
    SlmUse,
)

if TYPE_CHECKING:
    from clag.v1.memory_service_pb2 import DegradationKind as DegradationPb
    from clag.v1.types_pb2 import FallbackCause as CausePb

__all__ = ["done_to", "frames_of", "query_from"]


def query_from(
    message: pb.RetrieveRequest,
    *,
    dim: int | None,
    default_context_tokens: int = 0,
    deadline_s: float | None = None,
    prefix: str = "",
) -> RetrieveQuery:
    """A question, from a message that passed the schema's rules.

    Args:
        message: The request.
        dim: Dimension of the namespace's index, None when not known yet.
        default_context_tokens: Budget of the context where the request has none.
        deadline_s: Seconds until the caller gives up; None waits as long as it takes.
        prefix: Path of the message in the request, with its dot, for errors.

    Raises:
        InvalidField: An embedding, filter or revision does not fit.
    """
    return RetrieveQuery(
        namespace=message.namespace,
        text=message.query.text,
        vector=embedding_from(message.query.embedding, dim=dim, field=f"{prefix}query.embedding"),
        where=filter_from(message.filter, field=f"{prefix}filter") if message.HasField("filter") else None,
        session_id=message.session_id,
        mode=RetrieveMode(message.mode) if message.mode else RetrieveMode.TWO_STAGE,
        slm_use=SlmUse(message.slm_use) if message.slm_use else SlmUse.AUTO,
        task_hint=message.task_hint,
        max_clusters=message.max_clusters,
        max_memories=message.max_memories,
        context_tokens=message.context_tokens or default_context_tokens,
        context_format=ContextFormat(message.context_format) if message.context_format else ContextFormat.PLAIN,
        min_score=message.min_score if message.HasField("min_score") else None,
        include_superseded=message.include_superseded,
        include_archived=message.include_archived,
        include_embeddings=message.include_embeddings,
        explain=message.explain,
        fresh_revision=fresh_revision(message.namespace, message.read, field=f"{prefix}read"),
        deadline_s=deadline_s,
    )


def frames_of(namespace: str, stage: RetrieveStage, *, explain: bool) -> Iterator[pb.RetrieveResponse]:
    """Frames of one stage: one, except that many hits are split so that no frame nears the message limit."""
    match stage:
        case ClusterSelection():
            yield pb.RetrieveResponse(clusters=_selection(namespace, stage, explain=explain))
        case MemoryHits():
            yield from _hit_frames(namespace, stage, explain=explain)
        case AssembledContext():
            yield pb.RetrieveResponse(
                context=pb.AssembledContext(
                    text=stage.text,
                    tokens=stage.tokens,
                    memory_ids=stage.memory_ids,
                    left_out=stage.left_out,
                    truncated=stage.truncated,
                )
            )
        case RetrieveDone():
            yield pb.RetrieveResponse(done=done_to(namespace, stage))


def _selection(namespace: str, stage: ClusterSelection, *, explain: bool) -> pb.ClusterSelection:
    return pb.ClusterSelection(
        candidates=[
            pb.ClusterCandidate(
                cluster_id=cluster_id(candidate.cluster),
                title=candidate.title,
                score=candidate.score,
                selected=candidate.selected,
                memory_count=candidate.memory_count,
                memories_picked=candidate.memories_picked,
                reason=candidate.reason,
                cosine=candidate.cosine if explain else None,
                slm_vote=candidate.slm_vote,
            )
            for candidate in stage.candidates[:MAX_CANDIDATES]
        ],
        search_space=_space(stage.space),
        read_at=revision(namespace, stage.revision),
        fallback=cast("CausePb.ValueType", int(stage.fallback)),
    )


def _hit_frames(namespace: str, stage: MemoryHits, *, explain: bool) -> Iterator[pb.RetrieveResponse]:
    frame = pb.RetrieveResponse(memories=pb.MemoryHits())
    size = 0
    for hit in stage.hits:
        message = _hit(namespace, hit, explain=explain)
        size += _bytes(message)
        if frame.memories.hits and size > HITS_PER_FRAME_BYTES:
            yield frame
            frame = pb.RetrieveResponse(memories=pb.MemoryHits())
            size = _bytes(message)
        frame.memories.hits.append(message)
    yield frame


def _hit(namespace: str, hit: MemoryHit, *, explain: bool) -> pb.MemoryHit:
    message = pb.MemoryHit(
        memory=memory_to(namespace, hit.memory),
        score=hit.score,
        rank=hit.rank,
        cluster_title=hit.cluster_title,
        from_net=hit.parts.via == "net",
        conflicts=[
            pb.Conflict(
                memory_id=conflict.memory_id,
                reason=conflict.reason,
                clarifying_question=conflict.clarifying_question,
                newer=conflict.newer,
            )
            for conflict in hit.conflicts
        ],
        duplicate_ids=hit.duplicates,
    )
    if explain:
        parts = hit.parts
        for name, value in (
            ("dense", parts.dense),
            ("lexical", parts.lexical),
            ("neighbours", parts.neighbours),
            ("episode", parts.episode),
        ):
            message.score_parts.add(name=name, value=value)
        for name, value in (
            ("recency", parts.recency),
            ("access", parts.access),
            ("choice", parts.choice),
            ("speaker", parts.speaker),
        ):
            if value:
                message.score_parts.add(name=name, value=value)
    return message


def done_to(namespace: str, stage: RetrieveDone) -> pb.RetrieveDone:
    """Return the end of a retrieval."""
    total = stage.wait_s + stage.embed_s + stage.select_s + stage.rank_s + stage.context_s
    return pb.RetrieveDone(
        timings=pb.RetrieveTimings(
            queue_time=duration(stage.wait_s),
            embed_time=duration(stage.embed_s),
            select_time=duration(stage.select_s - stage.slm_s),
            slm_time=duration(stage.slm_s),
            rank_time=duration(stage.rank_s),
            context_time=duration(stage.context_s),
            total_time=duration(total),
        ),
        search_space=_space(stage.space),
        degraded=[
            pb.Degradation(kind=cast("DegradationPb.ValueType", int(what.kind)), detail=what.detail)
            for what in stage.degraded
        ],
        read_at=revision(namespace, stage.revision),
    )


def _space(space: SearchSpace) -> pb.SearchSpace:
    return pb.SearchSpace(
        memories_total=space.total,
        memories_in_selected_clusters=space.in_selected_clusters,
        memories_in_picked_episodes=space.in_picked_episodes,
        memories_added_by_net=space.added_by_net,
        memories_ranked=space.ranked,
        clusters_total=space.clusters_total,
        clusters_selected=space.clusters_selected,
        episodes_total=space.episodes_total,
        episodes_picked=space.episodes_picked,
    )


def _bytes(message: Message) -> int:
    return message.ByteSize()
