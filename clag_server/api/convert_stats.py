"""Counters of namespaces and stores, from domain to protobuf."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

from clag.v1 import admin_service_pb2 as pb

from clag_server.api.convert_values import duration
from clag_server.memory.counters import Outcome
from clag_server.memory.service import StoreStats, SystemStats
from clag_server.types.memory import FallbackCause, MemoryState
from clag_server.vectors.api import IndexState, IndexStatus

if TYPE_CHECKING:
    from clag.v1.types_pb2 import FallbackCause as CausePb

__all__ = ["stats_to"]

_INDEX_STATES: Final[Mapping[IndexState, pb.IndexState.ValueType]] = {
    IndexState.STARTING: pb.IndexState.INDEX_STATE_REBUILDING,
    IndexState.READY: pb.IndexState.INDEX_STATE_READY,
    IndexState.REBUILDING: pb.IndexState.INDEX_STATE_REBUILDING,
    IndexState.DEGRADED: pb.IndexState.INDEX_STATE_DEGRADED,
}
"""A starting index answers from the system of record, as a rebuilding one does."""

_STAGES: Final[Mapping[MemoryState, pb.Stage.ValueType]] = {
    MemoryState.STORED: pb.Stage.STAGE_EMBED,
    MemoryState.EMBEDDED: pb.Stage.STAGE_ROUTE,
    MemoryState.ROUTED: pb.Stage.STAGE_EVOLVE,
}
"""The stage that memories of a state wait for."""

_SLM_FALLBACKS = (Outcome.VOTE_FALLBACKS, Outcome.ANNOTATION_FALLBACKS, Outcome.SELECTION_FALLBACKS)
_SLM_ANSWERS = (Outcome.SLM_VOTES, Outcome.SLM_ANNOTATIONS, Outcome.SLM_SELECTIONS)


def stats_to(
    namespace: str, stats: Sequence[SystemStats], *, stores: StoreStats, open_streams: int, now_ns: int
) -> pb.GetStatsResponse:
    """Counters of one namespace, or the sums over several.

    Args:
        namespace: Its name, "" for the whole server.
        stats: One for each namespace.
        stores: What all namespaces share; one namespace is told its share of the bytes.
        open_streams: Ingest streams that are open.
        now_ns: The time, for ages.
    """
    share = sum(one.rows.share for one in stats) if namespace else 1.0
    return pb.GetStatsResponse(
        namespace=namespace,
        memories=_memories(_by_state(stats)),
        clusters=sum(one.rows.clusters for one in stats),
        archived_clusters=sum(one.rows.archived_clusters for one in stats),
        episodes=sum(one.rows.episodes for one in stats),
        open_episodes=sum(one.rows.open_episodes for one in stats),
        backlog=_backlog(stats, now_ns),
        index=_index(stores.index, rows=sum(one.rows.placed for one in stats)),
        outcomes=_outcomes(stats),
        bytes_on_disk=round(stores.bytes_on_disk * share),
        namespaces=len(stats),
        open_streams=open_streams,
    )


def _by_state(stats: Sequence[SystemStats]) -> Counter[MemoryState]:
    states: Counter[MemoryState] = Counter()
    for one in stats:
        states.update(one.rows.by_state)
    return states


def _memories(states: Counter[MemoryState]) -> pb.MemoryCounts:
    return pb.MemoryCounts(
        total=states.total(),
        stored=states[MemoryState.STORED],
        embedded=states[MemoryState.EMBEDDED],
        routed=states[MemoryState.ROUTED],
        evolved=states[MemoryState.EVOLVED],
        quarantined=states[MemoryState.QUARANTINED],
    )


def _backlog(stats: Sequence[SystemStats], now_ns: int) -> list[pb.StageBacklog]:
    states = _by_state(stats)
    backlog = []
    for state, stage in _STAGES.items():
        waiting = [one.rows.waiting[state] for one in stats]
        one_stage = pb.StageBacklog(
            stage=stage,
            pending=states[state],
            retrying=sum(one.retrying for one in waiting),
            last_error=next((one.last_error for one in waiting if one.last_error), ""),
        )
        since = [one.oldest_ns for one in waiting if one.oldest_ns is not None]
        if since:
            # The clock may have been set back.
            one_stage.oldest_age.CopyFrom(duration(max(0, now_ns - min(since)) / 1e9))
        backlog.append(one_stage)
    backlog.append(
        pb.StageBacklog(stage=pb.Stage.STAGE_INDEX, pending=sum(one.rows.index_backlog for one in stats))
    )
    backlog.append(pb.StageBacklog(stage=pb.Stage.STAGE_PROFILE, pending=sum(one.profiles_due for one in stats)))
    return backlog


def _outcomes(stats: Sequence[SystemStats]) -> pb.OutcomeCounters:
    outcomes: Counter[str] = Counter()
    causes: Counter[FallbackCause] = Counter()
    for one in stats:
        outcomes.update(one.outcomes)
        causes.update(one.fallbacks)
    return pb.OutcomeCounters(
        created=sum(one.rows.created for one in stats),
        duplicate=sum(one.rows.duplicates for one in stats),
        rejected=sum(one.rows.rejected for one in stats),
        deferred=outcomes[Outcome.DEFERRED],
        quarantined=sum(one.rows.by_state[MemoryState.QUARANTINED] for one in stats),
        deleted=sum(one.rows.deleted for one in stats),
        slm_requests=sum(outcomes[name] for name in (*_SLM_ANSWERS, *_SLM_FALLBACKS)),
        slm_fallbacks=sum(outcomes[name] for name in _SLM_FALLBACKS),
        fallbacks=[
            pb.FallbackCount(cause=cast("CausePb.ValueType", int(cause)), count=count)
            for cause, count in sorted(causes.items())
            if count
        ],
    )


def _index(status: IndexStatus, *, rows: int) -> pb.IndexStatus:
    return pb.IndexStatus(
        state=_INDEX_STATES[status.state],
        rows=rows,
        rebuild_done=status.done,
        rebuild_total=status.total,
        detail=status.reason,
    )
