"""Memories that cannot both hold are kept, told of, and ranked by which one holds (cases D5, D1)."""

from __future__ import annotations

from pathlib import Path

import pytest

from clag_server.memory.conflicts import clarifying_question, other_value
from clag_server.memory.system import MemorySystem
from clag_server.models.scripted import Script
from clag_server.types.memory import Annotator, LinkKind, Memory, MemoryKind
from clag_server.types.retrieval import MemoryHit
from tests.memory.builders import START_NS
from tests.memory.builders import memory as plain
from tests.memory.system import found, get, remember, rewrite, system_on, until
from tests.memory.test_evolving import answering, counted, first

HOUR_NS = 3_600 * 10**9
DOCK = ["the dock is in bay 3", "the dock is in bay 7"]


async def disagree(system: MemorySystem, *, speakers: tuple[str, str] = ("", ""), kind: MemoryKind) -> None:
    """Two memories, an hour apart, that say otherwise."""
    for n, (text, speaker) in enumerate(zip(DOCK, speakers, strict=True)):
        time_ns = START_NS + n * HOUR_NS
        await remember(system, [text], first=n, speaker=speaker, kind=kind, event_time_ns=time_ns)


def hit(hits: list[MemoryHit], memory_id: str) -> MemoryHit:
    return next(one for one in hits if one.memory.memory_id == memory_id)


async def test_a_fact_with_another_value_is_found_without_a_model(tmp_path: Path) -> None:
    async with system_on(tmp_path, annotate=Annotator.TERMS) as system:
        await disagree(system, kind=MemoryKind.FACT)
        older, newer = await get(system, "m0"), await get(system, "m1")
        assert older.confidence == 0.5
        assert older.superseded_by == "m1"
        assert (newer.confidence, newer.superseded_by) == (1.0, "")
        assert [link.kind for link in older.links] == [link.kind for link in newer.links] == [LinkKind.CONTRADICTS]
        assert counted(system)["conflicts"] == 1


async def test_the_newer_ranks_first_and_the_conflict_comes_with_a_question(tmp_path: Path) -> None:
    async with system_on(tmp_path, annotate=Annotator.TERMS) as system:
        await disagree(system, kind=MemoryKind.FACT)
        hits = await found(system, "the dock is in bay 3")
        assert [one.memory.memory_id for one in hits] == ["m1", "m0"]
        (of_newer,), (of_older,) = hits[0].conflicts, hits[1].conflicts
        assert (of_newer.memory_id, of_newer.newer) == ("m0", True)
        assert (of_older.memory_id, of_older.newer) == ("m1", False)
        assert of_newer.reason == "the same statement with another value: 7 and 3"
        assert of_newer.clarifying_question == of_older.clarifying_question
        for text in DOCK:
            assert text in of_newer.clarifying_question


@pytest.mark.parametrize("kind", [MemoryKind.OBSERVATION, MemoryKind.TOOL_OUTPUT, MemoryKind.MESSAGE])
async def test_readings_that_change_do_not_contradict_each_other(tmp_path: Path, kind: MemoryKind) -> None:
    async with system_on(tmp_path, annotate=Annotator.TERMS) as system:
        await disagree(system, kind=kind)
        assert (await get(system, "m0")).confidence == 1.0
        assert not (await get(system, "m0")).superseded_by


async def test_what_another_speaker_says_otherwise_leaves_both_standing(tmp_path: Path) -> None:
    script = Script(generate=answering(first("contradicts", "another bay")))
    async with system_on(tmp_path, script=script, annotate=Annotator.SLM) as system:
        await disagree(system, speakers=("Maria", "Bo"), kind=MemoryKind.MESSAGE)
        older = await get(system, "m0")
        assert (older.superseded_by, older.confidence) == ("", 0.5)
        told = hit(await found(system, "the dock is in bay 3"), "m0").conflicts
        assert [(one.memory_id, one.reason, one.newer) for one in told] == [("m1", "another bay", False)]
        assert "Bo" in told[0].clarifying_question


async def test_the_slm_finds_contradictions_that_words_do_not_show(tmp_path: Path) -> None:
    script = Script(generate=answering(first("contradicts", "another bay")))
    async with system_on(tmp_path, script=script, annotate=Annotator.SLM) as system:
        await disagree(system, kind=MemoryKind.OBSERVATION)
        older = await get(system, "m0")
        assert (older.superseded_by, older.confidence) == ("m1", 0.5)
        assert (await get(system, "m1")).text == DOCK[1]


async def test_a_deleted_memory_takes_back_what_it_contradicted(tmp_path: Path) -> None:
    async with system_on(tmp_path, annotate=Annotator.TERMS) as system:
        await disagree(system, kind=MemoryKind.FACT)
        await remember(system, ["the dock is in bay 9"], first=2, kind=MemoryKind.FACT)
        assert (await get(system, "m0")).confidence == 0.25
        assert (await get(system, "m1")).confidence == 0.5
        await system.edits.delete("robots", "m1", etag="")
        assert (await get(system, "m0")).confidence == 0.5
        await system.edits.delete("robots", "m2", etag="")
        older = await get(system, "m0")
        assert (older.confidence, older.superseded_by, older.links) == (1.0, "", ())


async def test_deleting_the_older_one_takes_nothing_from_the_newer(tmp_path: Path) -> None:
    async with system_on(tmp_path, annotate=Annotator.TERMS) as system:
        await disagree(system, kind=MemoryKind.FACT)
        await system.edits.delete("robots", "m0", etag="")
        newer = await get(system, "m1")
        assert (newer.confidence, newer.links) == (1.0, ())


@pytest.mark.parametrize("corrected", ["m0", "m1"])
async def test_a_corrected_memory_contradicts_nothing_any_more(tmp_path: Path, corrected: str) -> None:
    async with system_on(tmp_path, annotate=Annotator.TERMS) as system:
        await disagree(system, kind=MemoryKind.FACT)
        await system.edits.update("robots", corrected, rewrite("violins are tuned on Fridays"))
        await until(system, corrected, lambda memory: memory.state.name == "EVOLVED")
        older = await get(system, "m0")
        assert (older.confidence, older.superseded_by) == (1.0, "")
        assert not any(link.kind is LinkKind.CONTRADICTS for link in older.links)


def fact(key: int, text: str, **fields: str) -> Memory:
    one = plain(key, text, **fields)  # type: ignore[arg-type]
    return Memory(**{name: getattr(one, name) for name in Memory.__slots__} | {"kind": MemoryKind.FACT})


@pytest.mark.parametrize(
    ("one", "other", "contradict"),
    [
        ("the code of gate two is 4711.", "The code of gate two is 9002", True),
        ("The dock is B3.", "The dock is B7.", True),
        ("Der Bus nach Kassel fährt um 7:40", "Der Bus nach Kassel fährt um 8:15", True),
        ("الحافلة تغادر الساعة ٧", "الحافلة تغادر الساعة ٨", True),
        ("The door code of the shed is 77.", "The door code of the barn is 88.", False),
        ("the battery of arm 1 is full", "the battery of arm 2 is full", False),
        ("Anna is allergic to nuts", "Anna is allergic to milk", False),
        ("Anna's favourite colour is blue", "Anna's favourite colour is green", False),
        ("The red box is on shelf 4", "The blue box is on shelf 9", False),
        ("room 12 is locked", "room 14 is locked", False),
        ("the dock is in bay 3", "the dock is in bay 3", False),
        ("the dock is in bay 3", "the dock is in bay 3, near the gate", False),
        ("bay 3", "bay 7", False),
        ("", "", False),
    ],
)
def test_only_another_number_at_the_end_of_a_statement_counts(one: str, other: str, contradict: bool) -> None:
    assert (other_value(fact(2, one), fact(1, other)) is not None) is contradict


def test_facts_of_two_speakers_are_not_compared_word_by_word() -> None:
    assert other_value(fact(2, DOCK[1], speaker="Bo"), fact(1, DOCK[0], speaker="Maria")) is None


def test_a_question_quotes_long_memories_by_their_beginning() -> None:
    question = clarifying_question(fact(2, "word " * 500), fact(1, "short\nnote", speaker="Maria"))
    assert len(question) < 260
    assert "“short note” (Maria, " in question
