"""The warehouse robot example keeps the promises that its README and the demo make about it."""

from __future__ import annotations

import collections
import datetime
import itertools
import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import Stemmer

_FOLDER = Path(__file__).parents[2] / "examples" / "warehouse_robot"
_KINDS = {"observation", "action", "tool_output", "feedback", "reflection", "fact", "message"}
_TYPES = {"paraphrase", "multi", "cross_language", "updated", "direct"}
_FIELDS = {
    "id": str,
    "text": str,
    "speaker": str,
    "session": str,
    "time": str,
    "kind": str,
    "task": str,
    "importance": float,
    "tags": list,
    "attributes": dict,
    "supersedes": str,
}
_REQUIRED = ("id", "text", "speaker", "session", "time", "kind")

_LATIN_LANGUAGES = {
    "de": {"r013", "r094", "r123", "r281"},
    "es": {"r052", "r116", "r130", "r179", "r286"},
    "fr": {"r042", "r113", "r162", "r271", "r288"},
}
"""Lines in languages that share the Latin script with English, read one by one."""

_SCRIPTS = {
    "ja": re.compile(r"[\u3040-\u30ff]"),  # kana: Chinese has none
    "zh": re.compile(r"[\u4e00-\u9fff]"),
    "ko": re.compile(r"[\uac00-\ud7af]"),
    "ar": re.compile(r"[\u0600-\u06ff]"),
}

_STOP_WORDS = frozenset(
    """a about after again all also am an and any are as at be because been before being both but by can could did
    do does doing down during each every few for from further had has have having he her here hers him his how i if
    in into is it its itself just may me might more most must my no nor not now of off on once one only or other our
    ours out over own same shall she should so some such than that the their them then there these they this those
    through to too under until up us very was we were what when where which while who whom whose why will with would
    you your yours""".split()
)
_stem = Stemmer.Stemmer("english").stemWord


def _read(name: str) -> list[dict[str, Any]]:
    lines = (_FOLDER / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


_MEMORIES = _read("stream.jsonl")
_QUESTIONS = _read("questions.jsonl")
_BY_ID = {memory["id"]: memory for memory in _MEMORIES}


def _content_words(*texts: str) -> set[str]:
    words = re.findall(r"[^\W_]+", " ".join(texts).lower())
    return {_stem(word) for word in words if word not in _STOP_WORDS}


def _asked(kind: str) -> list[dict[str, Any]]:
    return [question for question in _QUESTIONS if kind in question["type"]]


def _language(memory: dict[str, Any]) -> str:
    by_script = next((name for name, script in _SCRIPTS.items() if script.search(memory["text"])), None)
    by_reading = next((name for name, ids in _LATIN_LANGUAGES.items() if memory["id"] in ids), "en")
    return by_script or by_reading


def test_every_line_has_the_documented_fields_and_types() -> None:
    for memory in _MEMORIES:
        assert set(_REQUIRED) <= set(memory) <= set(_FIELDS), memory["id"]
        for field, value in memory.items():
            assert isinstance(value, _FIELDS[field]), (memory["id"], field)
        assert memory["text"] == memory["text"].strip() != ""
        assert memory["kind"] in _KINDS
        assert 0.0 <= memory.get("importance", 0.0) <= 1.0
        for value in memory.get("attributes", {}).values():
            items = value if isinstance(value, list) else [value]
            assert all(isinstance(item, str) for item in items) or isinstance(value, (int, float)), memory


def test_ids_are_unique_and_allowed() -> None:
    assert len(_BY_ID) == len(_MEMORIES)
    assert all(re.fullmatch(r"[A-Za-z0-9._:-]{1,128}", name) for name in _BY_ID)


def test_no_two_memories_say_the_same() -> None:
    texts = collections.Counter(memory["text"] for memory in _MEMORIES if len(memory["text"]) > 5)
    assert [text for text, count in texts.items() if count > 1] == []


def test_two_weeks_in_at_least_fourteen_sessions_of_a_natural_length() -> None:
    sessions = collections.Counter(memory["session"] for memory in _MEMORIES)
    days = sorted({memory["time"][:10] for memory in _MEMORIES})
    assert len(_MEMORIES) >= 260
    assert len(sessions) >= 14
    assert all(14 <= count <= 22 for count in sessions.values()), sessions
    span = datetime.date.fromisoformat(days[-1]) - datetime.date.fromisoformat(days[0])
    assert datetime.timedelta(days=11) <= span <= datetime.timedelta(days=14)


def test_times_are_utc_ascend_in_the_file_and_belong_to_their_session() -> None:
    moments = [datetime.datetime.strptime(memory["time"], "%Y-%m-%dT%H:%M:%SZ") for memory in _MEMORIES]
    assert moments == sorted(moments)
    for memory, moment in zip(_MEMORIES, moments, strict=True):
        assert memory["session"].startswith(f"{moment:%Y-%m-%d}-")


def test_sessions_interleave_at_least_once_as_in_life() -> None:
    order = [memory["session"] for memory in _MEMORIES]
    runs = 1 + sum(a != b for a, b in itertools.pairwise(order))
    assert runs > len(set(order))


def test_many_people_many_kinds_and_trivial_lines() -> None:
    speakers = {memory["speaker"] for memory in _MEMORIES} - {"Kestrel"}
    assert len(speakers) >= 8
    assert {memory["kind"] for memory in _MEMORIES} == _KINDS
    assert sum(len(memory["text"]) <= 5 for memory in _MEMORIES) >= 3


def test_seven_languages_beside_english_are_spoken_and_marked() -> None:
    spoken = collections.Counter(_language(memory) for memory in _MEMORIES)
    assert set(spoken) == {"en", "de", "es", "fr", "ja", "zh", "ko", "ar"}
    assert sum(count for name, count in spoken.items() if name != "en") >= 20
    assert min(spoken.values()) >= 3
    for memory in _MEMORIES:
        assert memory.get("attributes", {}).get("language", "en") == _language(memory), memory["id"]


def test_texts_are_composed_unicode() -> None:
    for memory in _MEMORIES:
        assert unicodedata.is_normalized("NFC", memory["text"])


def test_what_is_superseded_exists_is_older_and_is_superseded_once() -> None:
    targets = [memory["supersedes"] for memory in _MEMORIES if "supersedes" in memory]
    assert len(targets) >= 5
    assert len(set(targets)) == len(targets)
    for memory in _MEMORIES:
        if "supersedes" in memory:
            assert _BY_ID[memory["supersedes"]]["time"] < memory["time"]


def test_every_memory_has_one_topic_label_and_no_topic_is_tiny() -> None:
    topics = _read("topics.jsonl")
    assert [label["id"] for label in topics] == [memory["id"] for memory in _MEMORIES]
    sizes = collections.Counter(label["topic"] for label in topics)
    assert 12 <= len(sizes) <= 18
    assert min(sizes.values()) >= 5


def test_twenty_questions_with_evidence_that_exists() -> None:
    assert [question["id"] for question in _QUESTIONS] == [f"q{n:02d}" for n in range(1, 21)]
    for question in _QUESTIONS:
        assert set(question) == {"id", "question", "evidence", "type", "note"}
        assert question["evidence"]
        assert set(question["evidence"]) <= set(_BY_ID)
        assert set(question["type"]) <= _TYPES
        assert question["type"]


@pytest.mark.parametrize("question", _asked("paraphrase"), ids=lambda question: str(question["id"]))
def test_a_paraphrase_question_shares_no_content_word_with_its_evidence(question: dict[str, Any]) -> None:
    asked = _content_words(question["question"])
    assert asked
    for name in question["evidence"]:
        memory = _BY_ID[name]
        said = _content_words(memory["text"], memory["speaker"], memory.get("task", ""), *memory.get("tags", []))
        assert asked & said == set(), name


def test_at_least_ten_questions_are_paraphrases() -> None:
    assert len(_asked("paraphrase")) >= 10


def test_at_least_four_questions_need_two_or_more_memories() -> None:
    assert len(_asked("multi")) >= 4
    assert all(len(question["evidence"]) >= 2 for question in _asked("multi"))


def test_at_least_three_questions_are_answered_in_another_language() -> None:
    assert len(_asked("cross_language")) >= 3
    for question in _asked("cross_language"):
        assert all(_language(_BY_ID[name]) != "en" for name in question["evidence"])


def test_at_least_three_questions_ask_for_the_newest_of_several_values() -> None:
    superseded = {memory["supersedes"] for memory in _MEMORIES if "supersedes" in memory}
    assert len(_asked("updated")) >= 3
    explicit = 0
    for question in _asked("updated"):
        evidence = question["evidence"]
        assert superseded.isdisjoint(evidence), question["id"]
        explicit += any("supersedes" in _BY_ID[name] for name in evidence)
    assert explicit >= 3
