"""From ranked keys to hits: texts, age, freshness, duplicates, expiry, conflicts, ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from clag_server.catalog.api import Catalog
from clag_server.memory.config import RetrieveConfig
from clag_server.memory.conflicts import clarifying_question, is_newer
from clag_server.memory.decay import decays, weigh_age
from clag_server.memory.duplicates import one_of_each
from clag_server.memory.namespace import NamespaceState
from clag_server.memory.ranking import Ranked
from clag_server.memory.supersession import Scored, newest_first
from clag_server.types.errors import NotFound
from clag_server.types.memory import LinkKind, Memory
from clag_server.types.retrieval import Conflict, MemoryHit, RetrieveQuery, ScoreParts

_SPARE = 32
"""Ranked memories read beyond those asked for: some may have expired, been deleted or fall below others."""

_SPARE_OF_ALL_AGES = 256
"""So many where age and use count: they may bring up what search alone ranks low."""

_MOST_READ = 1024
"""Ranked memories read at most, where duplicates leave too few to show."""

_CONFLICTS = 4
"""Conflicts told of one hit."""


async def hydrate(
    ranked: Ranked, state: NamespaceState, query: RetrieveQuery, config: RetrieveConfig, *, inside: Collection[int]
) -> list[MemoryHit]:
    """Return at most `max_memories` hits. `inside` are the keys in picked episodes; others came by the net."""
    wanted = query.max_memories or config.default_memories
    read = wanted + (_SPARE_OF_ALL_AGES if decays(config) else _SPARE)
    scored = await _scored(ranked, state, query, config, read)
    shown, duplicates = one_of_each(scored)
    while len(shown) < wanted and read < min(len(ranked.keys), _MOST_READ):
        read *= 4
        scored = await _scored(ranked, state, query, config, min(read, _MOST_READ))
        shown, duplicates = one_of_each(scored)
    shown = shown[:wanted]
    others = await _others(state.catalog, state.ns, shown, now_ns=state.now_ns())
    return [
        MemoryHit(
            memory=hit.memory,
            cluster_title=_title(state, hit.memory),
            score=hit.score,
            rank=rank,
            parts=_parts(ranked, hit, inside, config),
            conflicts=_conflicts(hit.memory, others),
            duplicates=duplicates.get(hit.memory.memory_id, ()),
        )
        for rank, hit in enumerate(shown, start=1)
    ]


async def _scored(
    ranked: Ranked, state: NamespaceState, query: RetrieveQuery, config: RetrieveConfig, read: int
) -> list[Scored]:
    """Return the best `read` memories that are there and are not expired, best first, duplicates included."""
    keys = [int(key) for key in ranked.keys[:read]]
    row_of = {key: row for row, key in enumerate(keys)}
    memories = await state.catalog.memories(state.ns, keys, embeddings=query.include_embeddings)
    now = state.now_ns()
    scored = [
        Scored(memory, float(ranked.scores[row_of[memory.key]]), row_of[memory.key])
        for memory in memories
        if memory.expire_time_ns is None or memory.expire_time_ns > now
    ]
    if decays(config):
        scored = weigh_age(scored, config, now_ns=now)
    if not query.include_superseded:
        scored = await newest_first(state.catalog, state.ns, scored)
    if query.min_score is not None:
        scored = [hit for hit in scored if hit.score >= query.min_score]
    return scored


async def _others(catalog: Catalog, ns: int, shown: Sequence[Scored], *, now_ns: int) -> dict[str, Memory]:
    """Return the memories that hits are in conflict with, by id, those that are there and not expired."""
    found = {hit.memory.memory_id: hit.memory for hit in shown}
    for memory_id in {one for hit in shown for one in _against(hit.memory)} - found.keys():
        try:
            other = await catalog.memory(ns, memory_id)
        except NotFound:
            continue
        if other.expire_time_ns is None or other.expire_time_ns > now_ns:
            found[memory_id] = other
    return found


def _title(state: NamespaceState, memory: Memory) -> str:
    cluster = state.map.clusters.get(memory.cluster or 0)
    return cluster.title if cluster is not None else ""


def _parts(ranked: Ranked, hit: Scored, inside: Collection[int], config: RetrieveConfig) -> ScoreParts:
    if hit.row is None:
        return ScoreParts(0.0, 0.0, 0.0, 0.0, via="supersession", recency=hit.recency, access=hit.access)
    row = hit.row
    return ScoreParts(
        dense=float(ranked.dense[row]),
        lexical=float(ranked.lexical[row]),
        neighbours=float(config.neighbour_weight * ranked.neighbours[row]),
        episode=float(config.episode_weight * ranked.episode_best[row]),
        via="cluster" if hit.memory.key in inside else "net",
        recency=hit.recency,
        access=hit.access,
        choice=float(ranked.bonus[row]),
        speaker=float(ranked.spoken[row]),
    )


def _against(memory: Memory) -> dict[str, str]:
    """Return what is known to say otherwise: ids with reasons, the memory that replaced this one first."""
    found = {memory.superseded_by: "replaced by a newer memory"} if memory.superseded_by else {}
    links = [link for link in memory.links if link.kind is LinkKind.CONTRADICTS]
    found.update((link.memory_id, link.reason) for link in links)
    return dict(list(found.items())[:_CONFLICTS])


def _conflicts(memory: Memory, others: Mapping[str, Memory]) -> tuple[Conflict, ...]:
    found = []
    for memory_id, reason in _against(memory).items():
        other = others.get(memory_id)
        if other is None:
            continue  # deleted in between, or expired
        newer, older = (memory, other) if is_newer(memory, other) else (other, memory)
        found.append(Conflict(memory_id, reason, clarifying_question(newer, older), newer is memory))
    return tuple(found)
