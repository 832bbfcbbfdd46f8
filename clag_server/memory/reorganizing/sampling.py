"""Which memories a plan is made from: recent ones, often used ones, some at random; the same for a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clag_server.memory.namespace import NamespaceState
from clag_server.memory.reorganizing.layout import Layout, Numbers
from clag_server.types.memory import Memory

__all__ = ["Sampled", "draw"]

LEAST = 50
"""Memories that are sampled at least, where there are so many (design, section 5: 50 to 150)."""

_SHARE = 10
"""One memory of so many is sampled, between the bounds."""

_POOL_EPISODES = 160
"""Episodes that are looked into: the newest half of them, the others at random. It bounds what is read of a
namespace of any size; the most used memories are the most used of these."""

_POOL_MEMORIES = 2_000


@dataclass(frozen=True, slots=True)
class Sampled:
    """A memory of the sample, and the row of its episode in the layout."""

    memory: Memory
    row: int


async def draw(state: NamespaceState, layout: Layout, *, most: int, seed: int) -> Sequence[Sampled]:
    """Draw `LEAST` to `most` memories of the clusters that may be touched, in an order of their own by seed."""
    movable = np.flatnonzero(np.isin(layout.homes, np.array(sorted(layout.movable), dtype=np.int64)))
    if not len(movable):
        return ()
    generator = np.random.default_rng(seed)
    pool = _pool(movable, generator)
    members = await state.catalog.episode_members(state.ns, [int(e) for e in layout.episodes[pool]])
    keys = generator.permutation(members.keys)[:_POOL_MEMORIES]
    row_of = {int(layout.episodes[row]): int(row) for row in pool}
    now_ns = state.now_ns()
    found = [
        Sampled(memory, row_of[memory.episode])
        for memory in await state.catalog.memories(state.ns, [int(key) for key in keys])
        if memory.episode in row_of and (memory.expire_time_ns is None or memory.expire_time_ns > now_ns)
    ]
    total = int(layout.sizes[movable].sum())
    wanted = min(most, max(LEAST, total // _SHARE))
    third = -(-wanted // 3)
    recent = sorted(found, key=lambda one: (-one.memory.event_time_ns, -one.memory.key))[:third]
    used = [one for one in found if one.memory.access_count > 0]
    used.sort(key=lambda one: (-one.memory.access_count, -one.memory.key))
    chosen = {one.memory.key: one for one in (*recent, *used[:third], *found)}
    first = list(chosen.values())[:wanted]
    return [first[int(at)] for at in generator.permutation(len(first))]


def _pool(movable: Numbers, generator: np.random.Generator) -> Numbers:
    if len(movable) <= _POOL_EPISODES:
        return movable
    newest = movable[-_POOL_EPISODES // 2 :]  # episodes are numbered as they begin
    others = generator.choice(movable[: -_POOL_EPISODES // 2], _POOL_EPISODES // 2, replace=False)
    return np.sort(np.concatenate([newest, others]))
