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


SAYS_OTHERWISE = [
    ("the door code is 1234", "The door code is 5678."),
    ("the code of gate two is 4711.", "The code of gate two is 9002"),
    ("The dock is B3.", "The dock is B7."),
    ("the dock is in bay 3", "the dock is in bay 7"),
    ("The spare key is in locker 12", "The spare key is in locker 14"),
    ("The hook of the spare key is number 3", "The hook of the spare key is number 4"),
    ("door code: 1234", "door code: 5678"),
    ("Anna's locker = 12", "Anna's locker = 14"),
    ("wifi password:abc123", "wifi password:xyz789"),
    ("The opening hours are 9-17", "The opening hours are 10-18"),
    ("Der Türcode ist 1234", "Der Türcode ist 5678"),
    ("Die Zimmernummer von Anna lautet 12", "Die Zimmernummer von Anna lautet 14"),
    ("Le code de la porte est 1234", "Le code de la porte est 5678"),
    ("La clave de la puerta es 1234", "La clave de la puerta es 5678"),
    ("Il codice della porta è 1234", "Il codice della porta è 5678"),
    ("Код двери — 1234", "Код двери — 5678"),
    ("رمز الباب هو ١٢٣٤", "رمز الباب هو ٥٦٧٨"),
    ("门禁密码是1234。", "门禁密码是5678。"),
    ("ドアの暗証番号は1234です", "ドアの暗証番号は5678です。"),
    ("현관 비밀번호는 1234", "현관 비밀번호는 5678"),
]

SAYS_SOMETHING_ELSE = [
    ("keys for room 12", "keys for room 14"),
    ("Keys for rooms on floor 3, room 12", "Keys for rooms on floor 3, room 14"),
    ("there is a charger in bay 3", "there is a charger in bay 7"),
    ("a charger is in bay 3", "a charger is in bay 7"),
    ("the keys are in room 12", "the keys are in room 14"),
    ("Bob is on call every week on day 3", "Bob is on call every week on day 5"),
    ("he is 12", "he is 14"),
    ("il est 12", "il est 14"),
    ("The bus to Kassel leaves at 7:40", "The bus to Kassel leaves at 8:15"),
    ("Der Bus nach Kassel fährt um 7:40", "Der Bus nach Kassel fährt um 8:15"),
    ("Schlüssel für Raum 12", "Schlüssel für Raum 14"),
    ("Es gibt Ersatzteile in Regal 12", "Es gibt Ersatzteile in Regal 14"),
    ("clés pour la chambre 12", "clés pour la chambre 14"),
    ("llaves de la sala 12", "llaves de la sala 14"),
    ("ключи от комнаты 12", "ключи от комнаты 14"),
    ("مفاتيح الغرفة ١٢", "مفاتيح الغرفة ١٤"),
    ("12号室の鍵、棚3", "12号室の鍵、棚4"),
    ("방 열쇠 12", "방 열쇠 14"),
    ("the door code was 1234", "the door code was 5678"),
    ("The door code of the shed is 77.", "The door code of the barn is 88."),
    ("the battery of arm 1 is full", "the battery of arm 2 is full"),
    ("Anna is allergic to nuts", "Anna is allergic to milk"),
    ("Anna's favourite colour is blue", "Anna's favourite colour is green"),
    ("The red box is on shelf 4", "The blue box is on shelf 9"),
    ("room 12 is locked", "room 14 is locked"),
    ("the dock is in bay 3", "the dock is in bay 3"),
    ("the dock is in bay 3", "the dock is in bay 3, near the gate"),
    ("bay 3", "bay 7"),
    ("is 3", "is 7"),
    ("", ""),
]


@pytest.mark.parametrize(("one", "other"), SAYS_OTHERWISE)
def test_a_statement_with_another_number_contradicts(one: str, other: str) -> None:
    assert other_value(fact(2, one), fact(1, other)) is not None
    assert other_value(fact(1, other), fact(2, one)) is not None


@pytest.mark.parametrize(("one", "other"), SAYS_SOMETHING_ELSE)
def test_items_of_lists_and_what_may_be_one_of_many_contradict_nothing(one: str, other: str) -> None:
    assert other_value(fact(2, one), fact(1, other)) is None


def test_facts_of_two_speakers_are_not_compared_word_by_word() -> None:
    assert other_value(fact(2, DOCK[1], speaker="Bo"), fact(1, DOCK[0], speaker="Maria")) is None


def test_a_question_quotes_long_memories_by_their_beginning() -> None:
    question = clarifying_question(fact(2, "word " * 500), fact(1, "short\nnote", speaker="Maria"))
    assert len(question) < 260
    assert "“short note” (Maria, " in question
