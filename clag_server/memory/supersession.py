"""Freshness among hits: what replaced a memory ranks before it, and is brought in where search missed it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clag_server.catalog.api import Catalog
from clag_server.types.errors import NotFound
from clag_server.types.memory import Memory

_STEP = 1e-6
_MAX_CHAIN = 16


@dataclass(slots=True)
class Scored:
    """A candidate hit: the memory, its score, its row in the ranking (None where supersession brought it in).

    `recency` and `access` are the parts of the score that age and use have.
    """

    memory: Memory
    score: float
    row: int | None
    recency: float = 0.0
    access: float = 0.0


async def newest_first(catalog: Catalog, ns: int, hits: Sequence[Scored]) -> list[Scored]:
    """Return the hits, best first, every superseded one directly or later after its newest successor.

    A successor takes the score of the best memory that it replaced, if that is higher.
    """
    by_id = {hit.memory.memory_id: hit for hit in hits}
    for hit in list(by_id.values()):
        chain = await _successors(catalog, ns, hit.memory, by_id)
        if not chain:
            continue
        newest = chain[-1]
        known = by_id.setdefault(newest.memory_id, Scored(newest, hit.score, None))
        known.score = max(known.score, hit.score)
    for hit in sorted(by_id.values(), key=lambda h: -h.memory.event_time_ns):
        successor = by_id.get(hit.memory.superseded_by)
        if successor is not None:
            hit.score = min(hit.score, successor.score - _STEP)
    return sorted(by_id.values(), key=lambda hit: (-hit.score, hit.memory.key))


async def _successors(catalog: Catalog, ns: int, memory: Memory, known: dict[str, Scored]) -> list[Memory]:
    """Follow `superseded_by` to its end; cycles and missing memories end the chain."""
    chain: list[Memory] = []
    seen = {memory.memory_id}
    while memory.superseded_by and memory.superseded_by not in seen and len(chain) < _MAX_CHAIN:
        seen.add(memory.superseded_by)
        found = known.get(memory.superseded_by)
        try:
            memory = found.memory if found else await catalog.memory(ns, memory.superseded_by)
        except NotFound:
            break
        chain.append(memory)
    return chain
