"""Episodes whose routing awaits the language model are found by their members' decisions, in order and in pages."""

from __future__ import annotations

from dataclasses import replace

from clag_server.catalog.api import Catalog
from clag_server.types.cluster import Move, PlacementPlan
from tests.catalog import support
from tests.catalog.support import NOW

AWAITS = replace(support.routing(provisional=True), awaits_slm=True)


async def decide(catalog: Catalog, ns: int, *moves: Move) -> None:
    await catalog.apply_plan(ns, PlacementPlan(routed_episodes=moves), now_ns=NOW)


async def test_what_awaits_is_listed_in_pages_until_it_is_decided(catalog: Catalog, ns: int) -> None:
    await support.organized(catalog, ns)
    assert list(await catalog.undecided_episodes(ns, after=0, limit=10)) == []
    await decide(catalog, ns, Move(2, 1, AWAITS), Move(1, 1, AWAITS))
    assert list(await catalog.undecided_episodes(ns, after=0, limit=10)) == [1, 2]
    assert list(await catalog.undecided_episodes(ns, after=0, limit=1)) == [1]
    assert list(await catalog.undecided_episodes(ns, after=1, limit=1)) == [2]
    assert list(await catalog.undecided_namespaces()) == [ns]
    await decide(catalog, ns, Move(1, 1, support.routing()))
    assert list(await catalog.undecided_episodes(ns, after=0, limit=10)) == [2]


async def test_a_decision_that_awaits_is_read_back_as_it_was_written(catalog: Catalog, ns: int) -> None:
    keys = await support.organized(catalog, ns)
    await decide(catalog, ns, Move(1, 1, AWAITS))
    members = [m for m in await catalog.memories(ns, keys) if m.episode == 1]
    assert members
    assert {member.routing for member in members} == {AWAITS}


async def test_an_episode_of_deleted_memories_awaits_nothing(catalog: Catalog, ns: int) -> None:
    keys = await support.organized(catalog, ns)
    await decide(catalog, ns, Move(1, 1, AWAITS))
    for memory in await catalog.memories(ns, keys):
        if memory.episode == 1:
            await catalog.delete(ns, memory.memory_id, etag="", now_ns=NOW)
    assert list(await catalog.undecided_episodes(ns, after=0, limit=10)) == []
    assert list(await catalog.undecided_namespaces()) == []


async def test_words_of_a_memory_in_a_title_or_a_reason_do_not_make_it_wait(catalog: Catalog, ns: int) -> None:
    await support.organized(catalog, ns)
    forged = replace(support.routing(), reason='","awaits_slm":true,"x":"')
    await decide(catalog, ns, Move(1, 1, forged))
    assert list(await catalog.undecided_episodes(ns, after=0, limit=10)) == []
