"""Vectors of hot episodes stay in memory within a bound of bytes, and never when they are of the past."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np

from clag_server.catalog.api import Catalog, EpisodeMembers
from clag_server.memory.cluster_map import ClusterMap
from clag_server.memory.episode_cache import EpisodeCache
from tests.memory.system import NAMESPACE, found, remember, rewrite, system_on


class Episodes:
    """A catalog that has episodes of ten memories and counts what is read."""

    def __init__(self) -> None:
        self.read: list[int] = []
        self.value = 1.0

    async def episode_members(self, _ns: int, episodes: Sequence[int]) -> EpisodeMembers:
        self.read += episodes
        await asyncio.sleep(0)
        numbers = np.repeat(np.array(episodes, dtype=np.int64), 10)
        rows = np.full((len(numbers), 4), self.value, dtype=np.float32)
        return EpisodeMembers(
            np.arange(len(numbers)), numbers, np.arange(len(numbers)), rows, numbers.astype(np.object_)
        )


class Map:
    """As much of a cluster map as the cache looks at."""

    def __init__(self, count: int) -> None:
        self.episodes = {number: _Episode(10, 9) for number in range(count)}


class _Episode:
    def __init__(self, memory_count: int, last_position: int) -> None:
        self.memory_count = memory_count
        self.last_position = last_position


def made(max_bytes: int) -> tuple[Episodes, EpisodeCache, ClusterMap]:
    episodes = Episodes()
    return episodes, EpisodeCache(cast("Catalog", episodes), max_bytes=max_bytes), cast("ClusterMap", Map(100))


async def test_an_episode_that_did_not_change_is_read_once() -> None:
    catalog, cache, episodes = made(1 << 20)
    for _ in range(3):
        members = await cache.members(1, episodes, [3, 4])
    assert catalog.read == [3, 4]
    assert members.episodes.tolist() == [3] * 10 + [4] * 10


async def test_an_episode_that_grew_or_was_changed_is_read_again() -> None:
    catalog, cache, episodes = made(1 << 20)
    await cache.members(1, episodes, [3])
    cast("Map", episodes).episodes[3] = _Episode(10, 12)
    await cache.members(1, episodes, [3])
    cache.forget(1, [3])
    catalog.value = 2.0
    assert (await cache.members(1, episodes, [3])).vectors[0, 0] == 2.0
    assert catalog.read == [3, 3, 3]


async def test_what_was_read_before_a_change_does_not_enter_after_it() -> None:
    catalog, cache, episodes = made(1 << 20)
    reading = asyncio.create_task(cache.members(1, episodes, [3]))
    await asyncio.sleep(0)
    cache.forget(1, [3])
    await reading
    await cache.members(1, episodes, [3])
    assert catalog.read == [3, 3]


async def test_the_bound_is_in_bytes_and_what_was_used_last_stays() -> None:
    one = 10 * (4 * 8 + 4 * 4)
    catalog, cache, episodes = made(3 * one)
    for number in (0, 1, 2, 0, 3):
        await cache.members(1, episodes, [number])
        assert cache.size <= 3 * one
    catalog.read.clear()
    await cache.members(1, episodes, [0, 2, 3])
    assert catalog.read == []
    await cache.members(1, episodes, [1])
    assert catalog.read == [1]
    cache.drop(1)
    assert cache.size == 0


async def test_namespaces_do_not_share_episodes() -> None:
    catalog, cache, episodes = made(1 << 20)
    await cache.members(1, episodes, [3])
    await cache.members(2, episodes, [3])
    assert catalog.read == [3, 3]


async def test_a_rewritten_memory_of_a_hot_episode_is_found_by_its_new_words_alone(tmp_path: Path) -> None:
    async with system_on(tmp_path) as system:
        await remember(system, ["the lamp is red", "the dock is B3"])
        assert (await found(system, "red lamp"))[0].memory.memory_id == "m0"
        await system.edits.update(NAMESPACE, "m0", rewrite("the door is blue"))
        hits = await found(system, "blue door")
        assert hits[0].memory.text == "the door is blue"
        assert all("red" not in hit.memory.text for hit in await found(system, "red lamp"))


async def test_without_memory_for_it_nothing_is_kept_and_answers_are_the_same(tmp_path: Path) -> None:
    async with system_on(tmp_path) as system:
        await remember(system, ["the lamp is red", "the dock is B3"])
        kept = [hit.memory.memory_id for hit in await found(system, "lamp")]
        system._cache = EpisodeCache(system._catalog, max_bytes=0)
        assert [hit.memory.memory_id for hit in await found(system, "lamp")] == kept
        assert system._cache.size == 0
