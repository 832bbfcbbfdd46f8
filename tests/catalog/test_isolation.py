"""Namespaces never see each other, whatever they and their memories are called."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from clag_server.catalog.api import Catalog, Evolution
from clag_server.types.cluster import Move, PlacementPlan
from clag_server.types.errors import NotFound
from clag_server.types.filters import And
from clag_server.types.memory import MemoryState, NewMemory
from tests.catalog import support
from tests.catalog.conftest import Reopen

NOW = support.NOW
HOSTILE = [
    '") or true or ("',
    "x'] or id not in ['zzz",
    "../../../../victim",
    "a%",
    "a_",
    '"; drop table memories; --',
]


async def filled(catalog: Catalog, name: str) -> tuple[int, int]:
    """Store and place one memory "same id" in a namespace; return the namespace and the key."""
    ns = (await support.namespace(catalog, name)).ns
    new = NewMemory(text=f"secret of {name}", memory_id="same id", session_id="s", attributes={"of": name})
    (item,) = await support.store(catalog, ns, [new])
    assert item.key is not None
    plan = PlacementPlan(
        clusters=[support.cluster(1, count=1, title=name)],
        episodes=[support.episode(1, 1, [support.unit(item.key)], is_open=True)],
        placements=[support.placement(item.key, 1, 1)],
    )
    await catalog.apply_plan(ns, plan, now_ns=NOW)
    return ns, item.key


@pytest.mark.parametrize("names", [["a", "a-1", "acme", "acme-corp", "A"], HOSTILE])
async def test_each_namespace_holds_its_own_memory_only(reopen: Reopen, names: list[str], tmp_path: Path) -> None:
    catalog = await reopen()
    spaces = {name: await filled(catalog, name) for name in names}
    catalog = await reopen()
    for name, (ns, key) in spaces.items():
        assert (await catalog.get_namespace(name)).ns == ns
        foreign = [other for _, other in spaces.values() if other != key]
        page = await catalog.list_memories(ns, where=None, after=0, limit=99)
        assert [memory.text for memory in page.memories] == [f"secret of {name}"]
        assert (await catalog.memory(ns, "same id")).key == key
        assert (await catalog.matching_keys(ns, And(()), limit=99)).keys.tolist() == [key]
        assert (await catalog.lexical(ns, ["word"], limit=99)).keys.tolist() == [key]
        assert (await catalog.episode_members(ns, [1])).keys.tolist() == [key]
        assert [cluster.title for cluster in await catalog.clusters(ns)] == [name]
        assert await catalog.memories(ns, foreign) == []
        assert (await catalog.members_of(ns, foreign)).keys.tolist() == []
        assert (await catalog.stats(ns)).by_state[MemoryState.EMBEDDED] == 1
        assert [op.seq for op in await catalog.read_index_ops(ns, after=0, limit=99)] == [
            (await catalog.index_head(ns))[0]
        ]
    files = {name for _, _, names in os.walk(tmp_path) for name in names}
    assert files <= {"catalog.db", "catalog.db-wal", "catalog.db-shm"}


@pytest.mark.parametrize("memory_id", HOSTILE)
async def test_a_memorys_id_is_plain_data(catalog: Catalog, ns: int, memory_id: str) -> None:
    await support.store_keys(catalog, ns, 3)
    with pytest.raises(NotFound):
        await catalog.memory(ns, memory_id)
    with pytest.raises(NotFound):
        await catalog.delete(ns, memory_id, etag="", now_ns=NOW)
    await support.store(catalog, ns, [NewMemory(text="x", memory_id=memory_id, supersedes=(memory_id, "%"))])
    await catalog.delete(ns, memory_id, etag="", now_ns=NOW)
    assert len((await catalog.list_memories(ns, where=None, after=0, limit=9)).memories) == 3


async def test_writes_with_another_namespaces_keys_change_nothing(catalog: Catalog) -> None:
    (mine, key), (theirs, their_key) = await filled(catalog, "mine"), await filled(catalog, "theirs")
    before = await catalog.memories(theirs, [their_key], embeddings=False)
    await catalog.touch(mine, [their_key], now_ns=NOW)
    await catalog.evolve(mine, [Evolution(their_key, 1, key, context="read")], now_ns=NOW)
    await catalog.record_failure(mine, [their_key], error="x", max_attempts=1, not_before_ns=NOW)
    await catalog.apply_plan(
        mine,
        PlacementPlan(
            placements=[support.placement(their_key, 1, 1)], routed_episodes=[Move(1, 1, support.routing())]
        ),
        now_ns=NOW,
    )
    await catalog.delete(mine, "same id", etag="", now_ns=NOW)
    assert await catalog.memories(theirs, [their_key], embeddings=False) == before
    await support.assert_consistent(catalog, theirs)
    await support.assert_consistent(catalog, mine)


async def test_writes_to_one_and_reads_of_another_at_once_do_not_mix(catalog: Catalog) -> None:
    a, b = (await support.namespace(catalog, "a")).ns, (await support.namespace(catalog, "b")).ns
    await support.store_keys(catalog, b, 5, prefix="b")

    async def read() -> list[str]:
        page = await catalog.list_memories(b, where=None, after=0, limit=99)
        return [memory.memory_id for memory in page.memories]

    async def write(i: int) -> list[str]:
        return [
            item.memory_id for item in await support.store(catalog, a, [NewMemory(text="a", memory_id=f"a-{i}")])
        ]

    results = await asyncio.gather(*(read() if i % 2 else write(i) for i in range(64)))
    assert [found for i, found in enumerate(results) if i % 2] == [[f"b-{i}" for i in range(5)]] * 32
    assert len((await catalog.list_memories(a, where=None, after=0, limit=99)).memories) == 32
