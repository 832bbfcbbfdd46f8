"""Freshness and use as terms of a hit's score; off unless the settings give them a weight.

Both are added to the scores of the memories that search found best, so they decide between relevant memories and
never bring in an irrelevant one.
"""

from __future__ import annotations

from collections.abc import Sequence

from clag_server.memory.config import RetrieveConfig
from clag_server.memory.supersession import Scored
from clag_server.types.memory import Memory

_DAY_NS = 86_400 * 10**9


def decays(config: RetrieveConfig) -> bool:
    """Whether age or use counts at all."""
    return config.recency_weight > 0 or config.access_weight > 0


def weigh_age(hits: Sequence[Scored], config: RetrieveConfig, *, now_ns: int) -> list[Scored]:
    """Add the terms for recency and use to the scores; returns the hits, best first."""
    for hit in hits:
        hit.recency = config.recency_weight * _faded(hit.memory.event_time_ns, config, now_ns)
        hit.access = config.access_weight * _use(hit.memory, config, now_ns)
        hit.score += hit.recency + hit.access
    return sorted(hits, key=lambda hit: (-hit.score, hit.memory.key))


def _faded(time_ns: int, config: RetrieveConfig, now_ns: int) -> float:
    """Return 1 for now, a half for every half-life before it; what is yet to come counts as now."""
    age_days = max(0, now_ns - time_ns) / _DAY_NS
    return float(0.5 ** (age_days / config.half_life_days))


def _use(memory: Memory, config: RetrieveConfig, now_ns: int) -> float:
    """Return how much a memory is used: 0 for never, towards 1 for often and lately."""
    if memory.last_access_time_ns is None or memory.access_count <= 0:
        return 0.0
    often = memory.access_count / (1.0 + memory.access_count)
    return often * _faded(memory.last_access_time_ns, config, now_ns)
