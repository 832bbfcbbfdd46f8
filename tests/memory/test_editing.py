"""Updates and deletes in the domain: what is searched, where memories go, what mirrors are told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from clag_server.memory.evolving import EvolveStage
from clag_server.memory.linking import Neighbour
from clag_server.memory.system import MemorySystem
from clag_server.models.scripted import Script
from clag_server.types.errors import EtagMismatch, NotFound, RequestIdReused
from clag_server.types.ingest import AckLevel
from clag_server.types.memory import Link, Memory, MemoryState
from tests.memory.system import NAMESPACE, found, get, remember, rewrite, session_is, system_on, until

RED = "the red crate stands beside the loading dock"
BLUE = "the blue barrel stands beside the loading dock"
OPERA = (
    "grandmother sings opera every sunday while neighbours applaud loudly from balconies and children dance "
    "barefoot around marble fountains until midnight bells ring"
)
OTHERS = [
    "the loading dock opens at seven",
    "crates beside the loading dock are picked up at noon",
    "the loading dock closes at five",
]


async def test_a_rewritten_memory_is_found_by_its_new_words_and_by_none_of_the_old(tmp_path: Path) -> None:
    async with system_on(tmp_path) as system:
        await remember(system, [OTHERS[0], RED, OTHERS[1]])
        updated = await system.edits.update(NAMESPACE, "m1", rewrite(BLUE))
        assert updated.memory.text == BLUE
        assert updated.memory.has_embedding
        state = system.registry.opened(NAMESPACE)
        assert state is not None
        words = await state.state.catalog.lexical(state.state.ns, ["red"], limit=10)
        assert len(words.keys) == 0
        hits = {hit.memory.memory_id: hit for hit in await found(system, "red crate")}
        assert "m1" not in hits or hits["m1"].parts.lexical == 0.0
        assert (await found(system, "blue barrel"))[0].memory.memory_id == "m1"


async def test_profiles_lose_the_words_of_a_memory_that_was_rewritten(tmp_path: Path) -> None:
    async with system_on(tmp_path) as system:
        await remember(system, [RED, OTHERS[0], OTHERS[2]])
        await system.edits.update(NAMESPACE, "m0", rewrite(BLUE))
        async with asyncio.timeout(20):
            while True:
                views, _ = await system.list_clusters(NAMESPACE, include_archived=True)
                told = " ".join(f"{v.cluster.title} {v.cluster.summary} {v.cluster.tags}" for v in views)
                if views and not any(v.cluster.profile_stale for v in views):
                    break
                await asyncio.sleep(0.01)
        assert "red" not in told.split()
        assert "crate" not in told


async def test_a_rewritten_memory_goes_back_among_its_neighbours_in_time(tmp_path: Path) -> None:
    async with system_on(tmp_path, episode_max=3) as system:
        await remember(system, [OTHERS[0], RED, OTHERS[1], OTHERS[2]])
        before = await get(system, "m1")
        updated = await system.edits.update(NAMESPACE, "m1", rewrite(BLUE))
        assert updated.memory.episode == before.episode
        assert updated.memory.session_position == before.session_position
        state = system.registry.opened(NAMESPACE)
        assert state is not None
        assert before.episode is not None
        members = await state.state.catalog.episode_members(state.state.ns, [before.episode])
        assert list(members.positions) == sorted(members.positions)
        assert len(members.keys) == 3


async def assert_links_are_true(system: MemorySystem, count: int) -> set[frozenset[str]]:
    """Hold every link of m0, m1, ... to the vectors that its ends have now; returns the pairs that are linked."""
    memories = {f"m{i}": await get(system, f"m{i}", embedding=True) for i in range(count)}
    pairs: dict[tuple[str, str], Link] = {
        (memory.memory_id, link.memory_id): link for memory in memories.values() for link in memory.links
    }
    for (here, there), link in pairs.items():
        ours, theirs = memories[here].embedding, memories[there].embedding
        assert ours is not None
        assert theirs is not None
        assert link.similarity == pytest.approx(float(ours @ theirs), abs=1e-4)
        assert (there, here) in pairs
    return {frozenset(pair) for pair in pairs}


async def test_a_rewritten_memory_is_linked_by_its_new_words_to_earlier_and_to_later_ones(tmp_path: Path) -> None:
    async with system_on(tmp_path, link_cosine=0.5, episode_cosine=-1.0) as system:
        await remember(system, [RED, OTHERS[0], OTHERS[2], RED + " today", OTHERS[1]])
        before = await assert_links_are_true(system, 5)
        assert {frozenset({"m2", "m1"}), frozenset({"m2", "m3"})} <= before
        await system.edits.update(NAMESPACE, "m2", rewrite(RED + " tonight"))
        await until(system, "m2", lambda memory: memory.state is MemoryState.EVOLVED)
        after = await assert_links_are_true(system, 5)
        assert {frozenset({"m2", "m0"}), frozenset({"m2", "m3"})} <= after
        assert {pair for pair in before if "m2" not in pair} == {pair for pair in after if "m2" not in pair}


async def test_evolution_links_to_no_neighbour_whose_words_changed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, go_on = asyncio.Event(), asyncio.Event()
    neighbours = EvolveStage._neighbours

    async def slowly(stage: EvolveStage, memories: Sequence[Memory]) -> dict[int, list[Neighbour]]:
        near = await neighbours(stage, memories)
        if any(near.values()):
            found.set()
            await go_on.wait()
        return near

    async with system_on(tmp_path, link_cosine=0.5) as system:
        await remember(system, [RED])
        monkeypatch.setattr(EvolveStage, "_neighbours", slowly)
        await remember(system, [RED + " today"], first=1, level=AckLevel.SEARCHABLE)
        await found.wait()
        await system.edits.update(NAMESPACE, "m0", rewrite(OPERA))
        go_on.set()
        await until(system, "m1", lambda memory: memory.state is MemoryState.EVOLVED)
        assert await assert_links_are_true(system, 2) == set()


async def test_a_memory_rewritten_to_another_topic_leaves_the_running_episode_alone(tmp_path: Path) -> None:
    async with system_on(tmp_path, episode_cosine=0.3) as system:
        await remember(system, [OTHERS[0], RED, OTHERS[1]])
        running = (await get(system, "m2")).episode
        await system.edits.update(NAMESPACE, "m1", rewrite(OPERA))
        alone = await get(system, "m1")
        assert alone.episode not in (None, running)
        await remember(system, [OTHERS[2]], first=3)
        assert (await get(system, "m3")).episode == running


async def test_words_that_change_while_they_are_embedded_are_not_placed(tmp_path: Path) -> None:
    script = Script(embed="unavailable")
    async with system_on(tmp_path, script=script) as system:
        await remember(system, [RED], level=AckLevel.DURABLE)
        updating = asyncio.create_task(system.edits.update(NAMESPACE, "m0", rewrite(BLUE)))
        await until(system, "m0", lambda memory: memory.text == BLUE)
        script.embed = "ok"
        assert (await updating).memory.state is not MemoryState.STORED
        assert (await found(system, "blue barrel"))[0].parts.lexical > 0


async def test_an_update_of_an_older_etag_is_refused(tmp_path: Path) -> None:
    async with system_on(tmp_path) as system:
        await remember(system, [RED])
        with pytest.raises(EtagMismatch):
            await system.edits.update(NAMESPACE, "m0", rewrite(BLUE, etag="1"))
        assert (await get(system, "m0")).text == RED


async def test_a_repeated_update_is_answered_as_before_and_not_done_again(tmp_path: Path) -> None:
    async with system_on(tmp_path) as system:
        await remember(system, [RED])
        etag = str((await get(system, "m0")).revision)
        change = rewrite(BLUE, etag=etag, request_id="r1", digest=b"one")
        first = await system.edits.update(NAMESPACE, "m0", change)
        again = await system.edits.update(NAMESPACE, "m0", change)
        assert again.revision == first.revision
        with pytest.raises(RequestIdReused):
            await system.edits.update(NAMESPACE, "m0", rewrite(RED, request_id="r1", digest=b"two"))


async def test_a_delete_by_filter_takes_all_that_match_and_nothing_else(tmp_path: Path) -> None:
    async with system_on(tmp_path) as system:
        await remember(system, [f"crate {i} is full" for i in range(5)], session="old")
        await remember(system, ["the dock is closed"], session="new", first=5)
        counted = await system.edits.delete_matching(NAMESPACE, session_is("old"), dry_run=True, within_s=20)
        assert (counted.matched, counted.deleted, counted.complete) == (5, 0, False)
        done = await system.edits.delete_matching(NAMESPACE, session_is("old"), dry_run=False, within_s=20)
        assert (done.matched, done.deleted, done.complete) == (5, 5, True)
        assert [hit.memory.memory_id for hit in await found(system, "crate full dock")] == ["m5"]
        page, _ = await system.list_memories(NAMESPACE, where=None, after=0, limit=10, fresh_revision=0)
        assert [memory.memory_id for memory in page.memories] == ["m5"]


async def test_a_delete_without_time_says_that_it_is_not_complete(tmp_path: Path) -> None:
    async with system_on(tmp_path) as system:
        await remember(system, [RED])
        done = await system.edits.delete_matching(NAMESPACE, session_is("s"), dry_run=False, within_s=0)
        assert (done.matched, done.deleted, done.complete) == (1, 0, False)
        assert (await get(system, "m0")).text == RED


async def test_a_cluster_goes_with_its_last_memory_and_its_profile_with_it(tmp_path: Path) -> None:
    async with system_on(tmp_path) as system:
        await remember(system, [RED])
        await system.edits.delete(NAMESPACE, "m0", etag="")
        assert (await system.list_clusters(NAMESPACE, include_archived=True))[0] == []
    async with system_on(tmp_path) as system:
        assert (await system.list_clusters(NAMESPACE, include_archived=True))[0] == []
        await remember(system, [BLUE], first=1)
        assert (await found(system, "blue barrel"))[0].memory.memory_id == "m1"


async def test_a_memory_that_is_deleted_while_it_is_embedded_is_not_placed(tmp_path: Path) -> None:
    script = Script(embed="unavailable")
    async with system_on(tmp_path, script=script) as system:
        await remember(system, [RED, BLUE], level=AckLevel.DURABLE)
        await system.edits.delete(NAMESPACE, "m0", etag="")
        script.embed = "ok"
        await until(system, "m1", lambda memory: memory.state is MemoryState.EVOLVED)
        pipeline = system.registry.opened(NAMESPACE)
        assert pipeline is not None
        assert pipeline.state.map.memory_count == 1
        with pytest.raises(NotFound):
            await get(system, "m0")


async def test_an_edit_goes_on_when_its_caller_gives_up(tmp_path: Path) -> None:
    async with system_on(tmp_path) as system:
        await remember(system, [RED, OTHERS[0]])
        deleting = asyncio.create_task(system.edits.delete(NAMESPACE, "m0", etag=""))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        deleting.cancel()
        await asyncio.gather(deleting, return_exceptions=True)
        await system.edits.stop()
        pipeline = system.registry.opened(NAMESPACE)
        assert pipeline is not None
        kept = await pipeline.state.catalog.stats(pipeline.state.ns)
        assert pipeline.state.map.memory_count == sum(kept.by_state.values())
