"""Localized evolution by the SLM: inside the cluster, checked, bounded, with the old values in the history."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from clag_server.memory.competence import Competence
from clag_server.memory.system import MemorySystem
from clag_server.models.scripted import Script
from clag_server.types.change import HistoryCause, HistoryEntry
from clag_server.types.competence import ProbeReport, Skill, SkillResult
from clag_server.types.memory import AnnotationSource, Annotator, FallbackCause, LinkKind, MemoryKind
from tests.memory.system import NAMESPACE, get, remember, system_on

NOTES = [
    "dock is in bay three near the gate",
    "dock charger in bay three is slow",
    "dock moved to bay seven near the gate",
]


def notes_of(prompt: str) -> dict[str, str]:
    """The notes that a prompt shows, by number, and "new"."""
    *numbered, new = (json.loads(block.split("\n>>>\n")[0]) for block in prompt.split("<<<\n")[1:])
    return {**(numbered[0] if numbered else {}), "new": new}


def answering(
    links: Callable[[dict[str, str]], Sequence[object]] = lambda _: (),
    updates: Callable[[dict[str, str]], Sequence[object]] = lambda _: (),
) -> Callable[[str], str]:
    """An SLM that annotates with the note's first words and proposes what it is told to."""

    def answer(prompt: str) -> str:
        if "belong together" in prompt:
            return ""  # of profiles it knows nothing
        notes = notes_of(prompt)
        words = notes["new"].split()
        value: dict[str, object] = {"context": " ".join(words[:4])[:72], "keywords": words[:1], "tags": ["docking"]}
        if len(notes) > 1:
            value |= {"links": list(links(notes))[:2], "updates": list(updates(notes))[:1]}
        return json.dumps(value)

    return answer


def first(kind: str, why: str = "both about the dock") -> Callable[[dict[str, str]], Sequence[object]]:
    return lambda _: [{"n": 1, "kind": kind, "why": why}]


def all_of_them(kind: str) -> Callable[[dict[str, str]], Sequence[object]]:
    return lambda notes: [{"n": int(n), "kind": kind, "why": "both about it"} for n in notes if n != "new"]


async def history(system: MemorySystem, memory_id: str) -> Sequence[HistoryEntry]:
    pipeline = await system.registry.pipeline(NAMESPACE, create=False)
    state = pipeline.state
    return (await state.catalog.memory_history(state.ns, memory_id, before=None, limit=100)).entries


def counted(system: MemorySystem) -> dict[str, int]:
    pipeline = system.registry.opened(NAMESPACE)
    assert pipeline is not None
    return dict(pipeline.state.counters.snapshot())


def fallbacks(system: MemorySystem) -> dict[FallbackCause, int]:
    pipeline = system.registry.opened(NAMESPACE)
    assert pipeline is not None
    return dict(pipeline.state.counters.fallbacks())


async def test_one_call_a_memory_annotates_and_links_it(tmp_path: Path) -> None:
    script = Script(generate=answering(first("causes")))
    async with system_on(tmp_path, script=script, annotate=Annotator.SLM) as system:
        await remember(system, NOTES[:2])
        later = await get(system, "m1")
        assert later.annotated_by is AnnotationSource.SLM
        assert later.context == "dock charger in bay"
        assert later.evolved_tags == ("docking",)
        assert (LinkKind.CAUSAL, "m0") in {(link.kind, link.memory_id) for link in later.links}
        earlier = await get(system, "m0")
        assert (LinkKind.CAUSAL, "m1") in {(link.kind, link.memory_id) for link in earlier.links}
        assert sum(call.kind == "generate" and "What happened?" in call.text for call in script.calls) == 2
        assert counted(system)["slm_evolution_calls"] == 2
        assert (await history(system, "m1"))[0].model == "scripted-slm"


async def test_a_neighbours_context_and_tags_are_rewritten_with_history_and_its_text_never(tmp_path: Path) -> None:
    rewrite = lambda _: [{"n": 1, "context": "where the dock was", "tags": ["history"]}]  # noqa: E731
    script = Script(generate=answering(first("refines"), rewrite))
    async with system_on(tmp_path, script=script, annotate=Annotator.SLM) as system:
        await remember(system, NOTES[:2])
        earlier = await get(system, "m0")
        assert (earlier.context, earlier.evolved_tags) == ("where the dock was", ("history",))
        assert earlier.text == NOTES[0]
        entry = (await history(system, "m0"))[0]
        assert (entry.cause, entry.cause_memory_id, entry.model) == (HistoryCause.EVOLUTION, "m1", "scripted-slm")
        assert ("context", '"dock is in bay"', '"where the dock was"') in {
            (change.field, change.old, change.new) for change in entry.changes
        }


async def test_what_a_deleted_memory_rewrote_on_others_becomes_what_it_was(tmp_path: Path) -> None:
    rewrite = lambda _: [{"n": 1, "context": "charger slow dock", "tags": ["secret"]}]  # noqa: E731
    script = Script(generate=answering(first("causes"), rewrite))
    async with system_on(tmp_path, script=script, annotate=Annotator.SLM) as system:
        await remember(system, NOTES[:2])
        assert (await get(system, "m0")).context == "charger slow dock"
        await system.edits.delete(NAMESPACE, "m1", etag="")
        earlier = await get(system, "m0")
        assert (earlier.context, earlier.evolved_tags) == ("dock is in bay", ("docking",))
        told = "".join(change.old + change.new for entry in await history(system, "m0") for change in entry.changes)
        assert "charger slow dock" not in told
        assert "secret" not in told


async def test_evolution_stays_in_the_cluster_even_of_a_model_that_links_to_everything(tmp_path: Path) -> None:
    everything = answering(all_of_them("same subject"), lambda _: [{"n": 1, "context": "all one", "tags": ["x1"]}])
    script = Script(generate=everything)
    async with system_on(tmp_path, script=script, annotate=Annotator.SLM, slm_neighbours=8) as system:
        for session in range(6):
            words = ["battery", "violin", "ramp", "orange", "door", "cello"][session]
            notes = [f"{words} {words} item{session}{n} {words}" for n in range(6)]
            await remember(system, notes, session=f"s{session}", first=10 * session)
        clusters = {
            f"m{10 * s + n}": (await get(system, f"m{10 * s + n}")).cluster for s in range(6) for n in range(6)
        }
        assert len(set(clusters.values())) > 1
        entries = 0
        for memory_id, cluster in clusters.items():
            for entry in await history(system, memory_id):
                if entry.cause_memory_id and entry.cause is not HistoryCause.ROUTING:
                    entries += 1
                    assert clusters[entry.cause_memory_id] == cluster == entry.cluster
            for link in (await get(system, memory_id)).links:
                assert clusters[link.memory_id] == cluster
        assert entries > 20


@pytest.mark.parametrize(
    ("weights", "annotated", "linked"),
    [
        ({}, False, False),
        ({Skill.ANNOTATION: 1.0}, True, False),
        ({Skill.EVOLUTION: 1.0}, False, True),
        ({Skill.ANNOTATION: 1.0, Skill.EVOLUTION: 1.0}, True, True),
    ],
)
async def test_the_slm_does_what_it_is_trusted_with_and_no_more(
    tmp_path: Path, weights: dict[Skill, float], annotated: bool, linked: bool
) -> None:
    script = Script(generate=answering(first("causes")))
    async with system_on(tmp_path, script=script, probe_auto=False) as system:
        learn(system.competence, weights)
        await remember(system, NOTES[:2])
        memory = await get(system, "m1")
        assert (memory.annotated_by is AnnotationSource.SLM) is annotated
        assert any(link.kind is LinkKind.CAUSAL for link in memory.links) is linked
        assert any(call.kind == "generate" for call in script.calls) is bool(weights)
        assert fallbacks(system).get(FallbackCause.INVALID_OUTPUT, 0) == 0


def learn(competence: Competence, weights: dict[Skill, float]) -> None:
    """Let a probe end with these weights."""
    skills = tuple(
        SkillResult(skill, 100, 1.0, 0.96, 1.0, 0.5, 1.0, 0.0, weight) for skill, weight in weights.items()
    )
    competence.learned(ProbeReport("scripted-slm", "test", skills, 1.0, 1))


async def test_beyond_the_hours_budget_the_terms_stand_in_and_say_so(tmp_path: Path) -> None:
    script = Script(generate=answering())
    clock = [1_800_000_000 * 10**9]
    async with system_on(
        tmp_path, script=script, annotate=Annotator.SLM, slm_calls_per_hour=2, now_ns=lambda: clock[0]
    ) as system:
        await remember(system, [*NOTES, "dock light is green"])
        sources = [(await get(system, f"m{n}")).annotated_by for n in range(4)]
        assert sources == [AnnotationSource.SLM] * 2 + [AnnotationSource.STATISTICS] * 2
        assert fallbacks(system) == {FallbackCause.BUDGET: 2}
        clock[0] += 1_800 * 10**9
        await remember(system, ["dock door opened"], first=4)
        assert (await get(system, "m4")).annotated_by is AnnotationSource.SLM


async def test_an_unusable_annotation_keeps_the_links_of_the_same_answer(tmp_path: Path) -> None:
    def answer(prompt: str) -> str:
        bad = {"context": "xyz xyz", "keywords": ["unheard"], "tags": ["no"]}
        return json.dumps(bad | {"links": [{"n": 1, "kind": "causes", "why": "the dock"}], "updates": []})

    async with system_on(tmp_path, script=Script(generate=answer), annotate=Annotator.SLM) as system:
        await remember(system, NOTES[:2])
        memory = await get(system, "m1")
        assert memory.annotated_by is AnnotationSource.STATISTICS
        assert any(link.kind is LinkKind.CAUSAL for link in memory.links)
        assert fallbacks(system)[FallbackCause.INVALID_OUTPUT] >= 1


@pytest.mark.parametrize("generate", ["unavailable", "refuse"])
async def test_without_an_answer_memories_are_organized_all_the_same(tmp_path: Path, generate: str) -> None:
    async with system_on(tmp_path, script=Script(generate=generate), annotate=Annotator.SLM) as system:
        await remember(system, NOTES)
        for n in range(3):
            assert (await get(system, f"m{n}")).keywords
        assert counted(system)["annotation_fallbacks"] == 3


async def test_what_the_slm_says_of_equal_words_does_not_make_them_disagree(tmp_path: Path) -> None:
    script = Script(generate=answering(first("contradicts")))
    async with system_on(tmp_path, script=script, annotate=Annotator.SLM) as system:
        await remember(system, [NOTES[0], NOTES[0]])
        memory = await get(system, "m1")
        assert {link.kind for link in memory.links} == {LinkKind.DUPLICATE}
        assert memory.kind is MemoryKind.UNSPECIFIED


async def test_no_word_of_a_deleted_memory_is_left_on_those_whose_annotations_it_stood_beside(
    tmp_path: Path,
) -> None:
    def copying(prompt: str) -> str:
        """A small model at its worst: whatever it writes is what it read of others."""
        if "belong together" in prompt:
            return ""
        notes = notes_of(prompt)
        other = notes.get("1", notes["new"])
        link = {"n": 1, "kind": "similar", "why": other[:48]}
        update = {"n": 1, "context": notes["new"][:72], "tags": [notes["new"].split()[-1]]}
        value: dict[str, object] = {
            "context": other[:72],
            "keywords": [notes["new"].split()[0], other.split()[-1]],
            "tags": [other.split()[-1]],
        }
        if len(notes) > 1:
            value |= {"links": [link], "updates": [update]}
        return json.dumps(value)

    async with system_on(tmp_path, script=Script(generate=copying), annotate=Annotator.SLM) as system:
        await remember(system, ["dock charger hums zeppelin"])
        await remember(system, ["dock charger is slow", "dock lights near the charger"], first=1)
        assert counted(system)["slm_annotations"] > 0
        shown = [await get(system, f"m{n}") for n in (1, 2)]
        assert any(link.memory_id == "m0" for memory in shown for link in memory.links)
        await system.edits.delete(NAMESPACE, "m0", etag="")
        for memory_id in ("m1", "m2"):
            memory = await get(system, memory_id)
            assert "zeppelin" not in repr(memory).casefold()
            assert "zeppelin" not in repr(await history(system, memory_id)).casefold()
