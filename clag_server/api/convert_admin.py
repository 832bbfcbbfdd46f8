"""Namespaces, counters and the server itself, from domain to protobuf."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

from clag.v1 import admin_service_pb2 as pb

import clag_server
from clag_server.api import limits
from clag_server.api.convert_values import duration, time_to
from clag_server.api.facts import ModelFacts, ServerFacts
from clag_server.catalog.api import Namespace
from clag_server.contract.pool import PACKAGE
from clag_server.memory.counters import Outcome
from clag_server.memory.service import SystemStats
from clag_server.models.api import EngineState
from clag_server.types.memory import MemoryState
from clag_server.vectors.api import IndexState, IndexStatus

__all__ = ["namespace_to", "server_info_to", "stats_to"]

_MODEL_STATES: Mapping[EngineState, pb.ModelState.ValueType] = {
    EngineState.LOADING: pb.ModelState.MODEL_STATE_LOADING,
    EngineState.READY: pb.ModelState.MODEL_STATE_READY,
    EngineState.DEGRADED: pb.ModelState.MODEL_STATE_UNAVAILABLE,
    EngineState.ABSENT: pb.ModelState.MODEL_STATE_UNAVAILABLE,
}

_INDEX_STATES: Mapping[IndexState, pb.IndexState.ValueType] = {
    IndexState.STARTING: pb.IndexState.INDEX_STATE_REBUILDING,
    IndexState.READY: pb.IndexState.INDEX_STATE_READY,
    IndexState.REBUILDING: pb.IndexState.INDEX_STATE_REBUILDING,
    IndexState.DEGRADED: pb.IndexState.INDEX_STATE_DEGRADED,
}
"""A starting index answers from the system of record, as a rebuilding one does."""

_SLM_FALLBACKS = (Outcome.VOTE_FALLBACKS, Outcome.ANNOTATION_FALLBACKS)
_SLM_ANSWERS = (Outcome.SLM_VOTES, Outcome.SLM_ANNOTATIONS)


def namespace_to(namespace: Namespace) -> pb.Namespace:
    """The message of a namespace."""
    return pb.Namespace(
        namespace=namespace.name,
        embedding_model=namespace.embedder.name,
        embedding_dimension=namespace.embedder.dim,
        create_time=time_to(namespace.create_time_ns),
        update_time=time_to(namespace.create_time_ns),
    )


def stats_to(namespace: str, stats: Sequence[SystemStats], *, open_streams: int) -> pb.GetStatsResponse:
    """Counters of one namespace, or the sums over several.

    Args:
        namespace: Its name, "" for the whole server.
        stats: One for each namespace.
        open_streams: Ingest streams that are open.
    """
    states: Counter[MemoryState] = Counter()
    outcomes: Counter[str] = Counter()
    for one in stats:
        states.update(one.rows.by_state)
        outcomes.update(one.outcomes)
    response = pb.GetStatsResponse(
        namespace=namespace,
        memories=pb.MemoryCounts(
            total=states.total(),
            stored=states[MemoryState.STORED],
            embedded=states[MemoryState.EMBEDDED],
            routed=states[MemoryState.ROUTED],
            evolved=states[MemoryState.EVOLVED],
            quarantined=states[MemoryState.QUARANTINED],
        ),
        clusters=sum(one.rows.clusters for one in stats),
        episodes=sum(one.rows.episodes for one in stats),
        backlog=[
            pb.StageBacklog(stage=pb.Stage.STAGE_EMBED, pending=states[MemoryState.STORED]),
            pb.StageBacklog(stage=pb.Stage.STAGE_ROUTE, pending=states[MemoryState.EMBEDDED]),
            pb.StageBacklog(stage=pb.Stage.STAGE_EVOLVE, pending=states[MemoryState.ROUTED]),
            pb.StageBacklog(stage=pb.Stage.STAGE_INDEX, pending=sum(one.rows.index_backlog for one in stats)),
        ],
        outcomes=pb.OutcomeCounters(
            created=sum(one.rows.created for one in stats),
            duplicate=sum(one.rows.duplicates for one in stats),
            rejected=sum(one.rows.rejected for one in stats),
            deferred=outcomes[Outcome.DEFERRED],
            quarantined=outcomes[Outcome.QUARANTINED],
            slm_requests=sum(outcomes[name] for name in (*_SLM_ANSWERS, *_SLM_FALLBACKS)),
            slm_fallbacks=sum(outcomes[name] for name in _SLM_FALLBACKS),
        ),
        bytes_on_disk=sum(one.bytes_on_disk for one in stats),
        namespaces=len(stats),
        open_streams=open_streams,
    )
    if stats:
        response.index.CopyFrom(_index(stats[0].index))
    return response


def server_info_to(facts: ServerFacts, *, unimplemented: Sequence[str]) -> pb.GetServerInfoResponse:
    """Version, limits and models of the server."""
    return pb.GetServerInfoResponse(
        version=clag_server.__version__,
        contract=PACKAGE,
        contract_hash=_contract_hash(),
        capabilities=facts.capabilities,
        unimplemented=unimplemented,
        limits=pb.Limits(
            max_message_bytes=limits.MAX_MESSAGE_BYTES,
            max_batch_items=facts.ingest.max_batch_items,
            max_batch_bytes=facts.ingest.max_batch_bytes,
            max_text_bytes=limits.MAX_TEXT_BYTES,
            window_items=facts.ingest.window_items,
            max_memories=limits.MAX_MEMORIES,
            max_page_size=limits.MAX_PAGE_SIZE,
            max_filter_depth=limits.MAX_FILTER_DEPTH,
            max_filter_nodes=limits.MAX_FILTER_NODES,
            max_unary_time=duration(facts.unary_deadline_s),
        ),
        embedder=_model(facts.embedder()),
        slm=_model(facts.slm()),
        start_time=time_to(facts.start_time_ns),
    )


def _model(model: ModelFacts) -> pb.ModelInfo:
    return pb.ModelInfo(
        name=model.status.model,
        sha256=model.fingerprint,
        state=_MODEL_STATES[model.status.state] if model.configured else pb.ModelState.MODEL_STATE_DISABLED,
        detail=model.status.reason,
        dimension=model.dim,
        device=model.status.device,
    )


def _index(status: IndexStatus) -> pb.IndexStatus:
    return pb.IndexStatus(
        state=_INDEX_STATES[status.state],
        rebuild_done=status.done,
        rebuild_total=status.total,
        detail=status.reason,
    )


@cache
def _contract_hash() -> str:
    return hashlib.sha256(files("clag_server.contract").joinpath("clag.v1.binpb").read_bytes()).hexdigest()
