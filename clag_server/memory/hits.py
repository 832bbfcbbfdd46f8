"""From ranked keys to hits: texts, freshness, expiry, conflicts, ranks."""

from __future__ import annotations

from collections.abc import Collection

from clag_server.memory.config import RetrieveConfig
from clag_server.memory.namespace import NamespaceState
from clag_server.memory.ranking import Ranked
from clag_server.memory.supersession import Scored, newest_first
from clag_server.types.memory import LinkKind, Memory
from clag_server.types.retrieval import Conflict, MemoryHit, RetrieveQuery, ScoreParts

_SPARE = 32
"""Ranked memories read beyond those asked for: some may have expired, been deleted or fall below others."""


async def hydrate(
    ranked: Ranked, state: NamespaceState, query: RetrieveQuery, config: RetrieveConfig, *, inside: Collection[int]
) -> list[MemoryHit]:
    """Return at most `max_memories` hits. `inside` are the keys in picked episodes; others came by the net."""
    wanted = query.max_memories or config.default_memories
    keys = [int(key) for key in ranked.keys[: wanted + _SPARE]]
    row_of = {key: row for row, key in enumerate(keys)}
    memories = await state.catalog.memories(state.ns, keys, embeddings=query.include_embeddings)
    now = state.now_ns()
    scored = [
        Scored(memory, float(ranked.scores[row_of[memory.key]]), row_of[memory.key])
        for memory in memories
        if memory.expire_time_ns is None or memory.expire_time_ns > now
    ]
    if not query.include_superseded:
        scored = await newest_first(state.catalog, state.ns, scored)
    if query.min_score is not None:
        scored = [hit for hit in scored if hit.score >= query.min_score]
    return [
        MemoryHit(
            memory=hit.memory,
            cluster_title=_title(state, hit.memory),
            score=hit.score,
            rank=rank,
            parts=_parts(ranked, hit, inside, config),
            conflicts=_conflicts(hit.memory),
        )
        for rank, hit in enumerate(scored[:wanted], start=1)
    ]


def _title(state: NamespaceState, memory: Memory) -> str:
    cluster = state.map.clusters.get(memory.cluster or 0)
    return cluster.title if cluster is not None else ""


def _parts(ranked: Ranked, hit: Scored, inside: Collection[int], config: RetrieveConfig) -> ScoreParts:
    if hit.row is None:
        return ScoreParts(dense=0.0, lexical=0.0, neighbours=0.0, episode=0.0, via="supersession")
    row = hit.row
    return ScoreParts(
        dense=float(ranked.dense[row]),
        lexical=float(ranked.lexical[row]),
        neighbours=float(config.neighbour_weight * ranked.neighbours[row]),
        episode=float(config.episode_weight * ranked.episode_best[row]),
        via="cluster" if hit.memory.key in inside else "net",
    )


def _conflicts(memory: Memory) -> tuple[Conflict, ...]:
    """What is known to say otherwise: the memory that replaced this one, and linked contradictions."""
    found: list[Conflict] = []
    if memory.superseded_by:
        found.append(Conflict(memory.superseded_by, "replaced by a newer memory", ""))
    found += [
        Conflict(link.memory_id, link.reason, "")
        for link in memory.links
        if link.kind is LinkKind.CONTRADICTS and link.memory_id != memory.superseded_by
    ]
    return tuple(found)
