"""Profiles by the SLM are the memories' own and distinct, or the deterministic ones stand in, field by field."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from clag_server.memory.profile_answers import parse_profile
from clag_server.memory.profiling import ProfileStage
from clag_server.memory.system import MemorySystem
from clag_server.models.scripted import Script
from clag_server.types.cluster import Cluster
from clag_server.types.memory import AnnotationSource, Annotator, FallbackCause
from tests.memory.system import NAMESPACE, remember, system_on
from tests.memory.test_evolving import answering, counted

TEXTS = ["the dock in bay three is blocked", "the dock charger hums", "new dock lights"]
GOOD = {"title": "Dock and charger", "summary": "What goes on at the dock.", "tags": ["docking", "power"]}


def read(answer: object, *, texts: Sequence[str] = TEXTS, taken: Sequence[str] = ()) -> tuple[str, FallbackCause]:
    draft = parse_profile(json.dumps(answer), texts, taken)
    return draft.title, draft.fallback


def test_a_title_in_the_memories_words_is_believed() -> None:
    assert read(GOOD) == ("Dock and charger", FallbackCause.NONE)


@pytest.mark.parametrize(
    "title",
    [
        "",
        "Ann: the dock is blocked",
        "Ignore the dock. Merge",
        "the dock in bay three is blocked again",
        "Fagottprobe verlegt",
        "Invoices",
        "Док и зарядка",
        "json object",
        "dock dock dock dock dock dock",
        7,
    ],
)
def test_a_title_that_is_not_theirs_is_refused(title: object) -> None:
    assert read(GOOD | {"title": title}) == ("", FallbackCause.INVALID_OUTPUT)


def test_a_title_that_another_cluster_has_is_refused_whatever_its_case() -> None:
    assert read(GOOD, taken=["dock AND charger"])[1] is FallbackCause.INVALID_OUTPUT


def test_a_title_is_in_the_memories_language() -> None:
    korean = ["로봇이 충전기 앞에 있다", "충전기 불이 켜졌다"]
    assert read(GOOD, texts=korean)[0] == ""
    assert read(GOOD | {"title": "충전기"}, texts=korean)[0] == "충전기"


def test_tags_of_the_prompt_are_dropped() -> None:
    draft = parse_profile(json.dumps(GOOD | {"tags": ["pottery", "keywords", "docking"]}), TEXTS, ())
    assert draft.tags == ("docking",)


@pytest.mark.parametrize("answer", ["", "{", "[]", "no", "null", '{"title": "dock'])
def test_an_answer_that_is_no_profile_is_refused(answer: str) -> None:
    assert parse_profile(answer, TEXTS, ()).fallback is FallbackCause.INVALID_OUTPUT


def by_prompt(profile: Mapping[str, object]) -> Script:
    """An SLM that annotates memories, and writes this profile of clusters."""
    annotate = answering()

    def answer(prompt: str) -> str:
        return json.dumps(profile) if "belong together" in prompt else annotate(prompt)

    return Script(generate=answer)


async def profiled(system: MemorySystem) -> Cluster:
    """The only cluster, once it has a profile."""
    await remember(system, [*TEXTS, "the dock door is shut", "a dock lamp broke"])
    pipeline = await system.registry.pipeline(NAMESPACE, create=False)
    (cluster,) = pipeline.state.map.clusters.values()
    return cluster


async def test_the_slm_names_clusters_where_it_is_let(tmp_path: Path) -> None:
    async with system_on(tmp_path, script=by_prompt(GOOD), annotate=Annotator.SLM) as system:
        cluster = await profiled(system)
        assert (cluster.title, cluster.profiled_by) == ("Dock and charger", AnnotationSource.SLM)
        assert cluster.tags == ("docking", "power")
        assert counted(system)["slm_profiles"] >= 1


async def test_a_bad_title_is_made_from_the_memories_words_and_counted(tmp_path: Path) -> None:
    script = by_prompt(GOOD | {"title": "Invoices"})
    async with system_on(tmp_path, script=script, annotate=Annotator.SLM) as system:
        cluster = await profiled(system)
        assert "dock" in cluster.title
        assert cluster.profiled_by is AnnotationSource.STATISTICS
        assert counted(system)["profile_fallbacks"] >= 1


async def test_an_untrusted_slm_is_not_asked_for_profiles(tmp_path: Path) -> None:
    script = by_prompt(GOOD)
    async with system_on(tmp_path, script=script, probe_auto=False) as system:
        assert (await profiled(system)).profiled_by is AnnotationSource.STATISTICS
        assert not any(call.kind == "generate" for call in script.calls)


async def test_a_cluster_of_few_memories_is_named_by_its_words(tmp_path: Path) -> None:
    async with system_on(tmp_path, script=by_prompt(GOOD), annotate=Annotator.SLM) as system:
        await remember(system, TEXTS[:2])
        pipeline = await system.registry.pipeline(NAMESPACE, create=False)
        (cluster,) = pipeline.state.map.clusters.values()
        assert cluster.profiled_by is AnnotationSource.STATISTICS
        assert counted(system)["slm_profiles"] == 0


async def test_a_cluster_that_goes_after_it_was_found_due_is_skipped(tmp_path: Path) -> None:
    async with system_on(tmp_path) as system:
        cluster = await profiled(system)
        state = (await system.registry.pipeline(NAMESPACE, create=False)).state
        state.map.put_cluster(replace(cluster, profile_stale=True))
        looking = asyncio.create_task(ProfileStage(state, slm=None).round())
        # Runs after the round listed what is due, and before it looks at any of it.
        asyncio.get_running_loop().call_soon(state.map.remove_cluster, cluster.cluster)
        assert await looking == 1
        assert cluster.cluster not in state.map.clusters
