"""A memory that is moved after it has evolved evolves once more where it comes to, and keeps what it had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clag_server.memory.cluster_service import EditOptions
from clag_server.memory.system import MemorySystem
from clag_server.models.scripted import Script
from clag_server.types.memory import AnnotationSource, Annotator, LinkKind, Memory, MemoryState
from tests.catalog.consistency import assert_file_consistent
from tests.memory.reorganize_support import SETTINGS, merge, move, organized, reorganized, tell
from tests.memory.routing_support import BETWEEN, all_memories, ingest, prefers, routed, running, session, topics
from tests.memory.system import NAMESPACE, get, rewrite, system_on, until
from tests.memory.test_evolving import answering, counted, history, notes_of

NEAR: dict[str, Any] = {**SETTINGS, "link_cosine": 0.01, "link_neighbours": 12}
"""Whatever shares a word is linked."""


def links(memory: Memory) -> set[tuple[str, LinkKind]]:
    return {(link.memory_id, link.kind) for link in memory.links}


def linked_topics(memory: Memory) -> set[str]:
    return {link.memory_id.split("-")[0] for link in memory.links}


def asked_about(script: Script) -> list[str]:
    """The notes that the model was asked about for evolution, in order."""
    prompts = [call.text for call in script.calls if call.kind == "generate" and "What happened?" in call.text]
    return [notes_of(prompt)["new"] for prompt in prompts]


async def revision(system: MemorySystem) -> int:
    pipeline = await system.registry.pipeline(NAMESPACE, create=False)
    return await pipeline.state.catalog.revision()


async def test_it_is_linked_in_its_new_cluster_and_keeps_the_links_it_had(tmp_path: Path) -> None:
    async with system_on(tmp_path, **NEAR) as system:
        homes = await tell(system, ["dock", "door"])
        before = await get(system, "door-1-0")
        assert linked_topics(before) == {"door"}
        await move(system, homes["dock"], ["door-1"])
        await organized(system)
        after = await get(system, "door-1-0")
        assert (after.state, after.cluster) == (MemoryState.EVOLVED, homes["dock"])
        assert links(before) < links(after)
        assert linked_topics(after) == {"door", "dock"}
        met = await get(system, next(one for one, _ in links(after) if one.startswith("dock")))
        assert "door-1-0" in {link.memory_id for link in met.links}
    assert_file_consistent(tmp_path / "catalog.db")


async def test_a_single_memory_that_leaves_its_episode_evolves_again_too(tmp_path: Path) -> None:
    async with system_on(tmp_path, **NEAR) as system:
        homes = await tell(system, ["dock", "door"])
        await system.cluster_edits.move(NAMESPACE, homes["dock"], ["door-1-1"], EditOptions())
        await organized(system)
        assert linked_topics(await get(system, "door-1-1")) == {"door", "dock"}
        assert linked_topics(await get(system, "door-1-0")) == {"door"}


async def test_new_links_and_rewriting_stay_inside_the_cluster_of_their_moment(tmp_path: Path) -> None:
    async with system_on(tmp_path, **NEAR) as system:
        homes = await tell(system, ["dock", "door", "lamp"])
        await move(system, homes["dock"], ["door-1"])
        await organized(system)
        for memory_id in ("door-1-0", "dock-0-0", "dock-2-1"):
            for entry in await history(system, memory_id):
                if entry.cause_memory_id and entry.cause_memory_id.startswith("door") and "dock" in memory_id:
                    assert entry.cluster == homes["dock"]
        assert "lamp" not in linked_topics(await get(system, "door-1-0"))


async def test_it_evolves_once_and_not_for_ever(tmp_path: Path) -> None:
    async with system_on(tmp_path, **NEAR) as system:
        homes = await tell(system, ["dock", "door"])
        evolved = counted(system)["evolved"]
        await move(system, homes["dock"], ["door-1"])
        await organized(system)
        settled = await revision(system)
        (await system.registry.pipeline(NAMESPACE, create=False)).edited()
        await organized(system)
        assert await revision(system) == settled
        assert counted(system)["evolved"] == evolved == 24


async def test_parts_of_a_split_met_each_other_before_and_do_not_evolve_again(tmp_path: Path) -> None:
    async with system_on(tmp_path, **NEAR) as system:
        homes = await tell(system, ["dock", "door"])
        await merge(system, homes["dock"], [homes["door"]])
        await organized(system)
        before = {one: (m.links, m.keywords) for one, m in (await all_memories(system)).items()}
        await system.cluster_edits.split_into(NAMESPACE, homes["dock"], 2, EditOptions())
        found = await all_memories(system)
        assert {memory.state for memory in found.values()} == {MemoryState.EVOLVED}
        assert {one: (m.links, m.keywords) for one, m in found.items()} == before


async def test_after_a_merge_those_that_came_are_looked_at_and_no_others(tmp_path: Path) -> None:
    script = Script(generate=answering())
    async with system_on(tmp_path, script=script, annotate=Annotator.SLM, **NEAR) as system:
        homes = await tell(system, ["dock", "door"])
        known = await all_memories(system)
        assert {memory.annotated_by for memory in known.values()} == {AnnotationSource.SLM}
        script.calls.clear()
        script.generate = "unavailable"  # whatever it would say now is no reason to forget what it said
        await merge(system, homes["dock"], [homes["door"]])
        await organized(system)
        assert sorted(asked_about(script)) == sorted(m.text for one, m in known.items() if one.startswith("door"))
        for one, memory in (await all_memories(system)).items():
            was = known[one]
            assert (memory.context, memory.keywords, memory.evolved_tags) == (
                was.context,
                was.keywords,
                was.evolved_tags,
            )
            assert memory.annotated_by is AnnotationSource.SLM


async def test_the_budget_of_the_hour_is_for_new_memories_first_and_moved_ones_need_none(tmp_path: Path) -> None:
    script = Script(generate=answering())
    async with system_on(tmp_path, script=script, annotate=Annotator.SLM, slm_calls_per_hour=24, **NEAR) as system:
        homes = await tell(system, ["dock", "door"])
        script.calls.clear()
        await move(system, homes["dock"], ["door-1"])
        await organized(system)
        assert asked_about(script) == []
        memory = await get(system, "door-1-0")
        assert memory.annotated_by is AnnotationSource.SLM
        assert linked_topics(memory) == {"door", "dock"}


async def test_tags_by_terms_become_words_of_the_new_cluster(tmp_path: Path) -> None:
    async with system_on(tmp_path, **NEAR) as system:
        homes = await tell(system, ["dock", "door"])
        memory = await get(system, "door-1-0")
        assert memory.annotated_by is AnnotationSource.STATISTICS
        await move(system, homes["dock"], ["door-1"])
        await organized(system)
        after = await get(system, "door-1-0")
        views, _ = await system.list_clusters(NAMESPACE, include_archived=False)
        tags = {tag for view in views if view.cluster.cluster == homes["dock"] for tag in view.cluster.tags}
        assert set(after.evolved_tags) <= tags
        assert (after.text, after.keywords) == (memory.text, memory.keywords)


async def test_links_stay_within_their_bound_however_often_a_memory_moves(tmp_path: Path) -> None:
    async with system_on(tmp_path, **NEAR, max_links=4) as system:
        homes = await tell(system, ["dock", "door", "lamp"])
        assert all(len(memory.links) <= 4 for memory in (await all_memories(system)).values())
        for target in ("dock", "lamp", "door", "dock"):
            await move(system, homes[target], ["door-1"])
            await organized(system)
        assert all(len(memory.links) <= 4 for memory in (await all_memories(system)).values())


async def test_one_that_is_moved_and_then_rewritten_is_annotated_anew(tmp_path: Path) -> None:
    script = Script(generate=answering())
    async with system_on(tmp_path, script=script, annotate=Annotator.SLM, **NEAR) as system:
        homes = await tell(system, ["dock", "door"])
        await move(system, homes["dock"], ["door-1"])
        await system.edits.update(NAMESPACE, "door-1-0", rewrite("violins are tuned on Fridays"))
        await until(system, "door-1-0", lambda memory: memory.state is MemoryState.EVOLVED)
        memory = await get(system, "door-1-0")
        assert memory.context == "violins are tuned on"
        assert memory.keywords == ("violins",)


async def test_one_that_re_organization_moves_evolves_where_it_belongs(tmp_path: Path) -> None:
    async with system_on(tmp_path, **SETTINGS, link_cosine=0.3) as system:
        homes = await tell(system, ["dock", "door"])
        await move(system, homes["door"], ["dock-1"])
        await organized(system)
        await reorganized(system)
        await organized(system)
        memory = await get(system, "dock-1-0")
        assert (memory.cluster, memory.state) == (homes["dock"], MemoryState.EVOLVED)
        assert any(link.memory_id.startswith("dock") for link in memory.links)


async def test_one_that_the_models_vote_moves_is_linked_where_it_went(tmp_path: Path) -> None:
    script = Script()
    async with running(tmp_path, script) as system:
        cluster = await topics(system)
        script.choose = prefers("music")
        await ingest(system, session("new", "hums a tune at the charger", BETWEEN), stream="new")
        await routed(system)
        await organized(system)
        memory = await get(system, "new-0")
        assert (memory.cluster, memory.state) == (cluster["music"], MemoryState.EVOLVED)
        assert "music" in linked_topics(memory)


async def test_what_waits_to_evolve_again_does_so_after_a_restart(tmp_path: Path) -> None:
    async with system_on(tmp_path, **NEAR) as system:
        homes = await tell(system, ["dock", "door"])
        pipeline = await system.registry.pipeline(NAMESPACE, create=False)
        await pipeline.stop()
        await move(system, homes["dock"], ["door-1"])
        await move(system, homes["dock"], ["door-2"])
        waiting = await get(system, "door-1-0")
        assert waiting.state is MemoryState.ROUTED
        await move(system, homes["door"], ["door-1"])  # back again, before anybody looked
        assert (await get(system, "door-1-0")).routing.evolve_again  # type: ignore[union-attr]
    async with system_on(tmp_path, **NEAR) as system:
        await organized(system)
        assert linked_topics(await get(system, "door-2-0")) == {"door", "dock"}
        assert linked_topics(await get(system, "door-1-0")) == {"door"}
    assert_file_consistent(tmp_path / "catalog.db")
