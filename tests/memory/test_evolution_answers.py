"""Whatever a model answers, what is stored of it is usable, and the rest is known to be missing (M1 to M4, M7)."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clag_server.memory.evolution_answers import Asked, EvolutionAnswer, ask_evolution, parse_answer
from clag_server.models.scripted import Script, ScriptedSlm
from clag_server.types.memory import AnnotationSource, FallbackCause, LinkKind

TEXT = "The gripper dropped a crate of oranges in aisle seven"
NEIGHBOURS = ("Aisle seven was wet this morning", "The crate of oranges came on Monday", "Lunch is at noon")
GOOD = {"context": "A crate fell in an aisle.", "keywords": ["gripper", "crate"], "tags": ["incident"]}
WHOLE = GOOD | {"links": [{"n": 1, "kind": "causes", "why": "wet floor"}], "updates": []}


def read(answer: object, text: str = TEXT, neighbours: Sequence[str] = NEIGHBOURS) -> EvolutionAnswer:
    return parse_answer(json.dumps(answer), Asked(text, neighbours=tuple(neighbours)))


async def asked(answer: str, neighbours: Sequence[str] = ()) -> EvolutionAnswer:
    slm = ScriptedSlm(lambda: Script(generate=answer))
    return await ask_evolution(slm, Asked(TEXT, neighbours=tuple(neighbours)))


@pytest.mark.parametrize("wrap", ["{}", "Sure! {} Hope it helps", "```json\n{}\n```"])
async def test_an_object_in_prose_is_read(wrap: str) -> None:
    result = await asked(wrap.replace("{}", json.dumps(GOOD)))
    assert result.annotation is not None
    assert result.annotation.source is AnnotationSource.SLM
    assert result.annotation.keywords == ("gripper", "crate")
    assert result.fallback is FallbackCause.NONE


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "no object at all",
        '{"context": "cut off by the lim',
        '{"type": "object", "properties": {"context": {"type": "string"}}}',
        "tag tag tag " * 1000,
        "[1, 2, 3]",
        '{"context": 5, "keywords": ["gripper"], "tags": []}',
        '{"context": "x", "keywords": ["words", "of", "the prompt"], "tags": []}',
        '{"context": "x", "keywords": {}, "tags": []}',
        "{" * 5000 + "}" * 5000,
        json.dumps(GOOD | {"context": "the crate the crate the crate the crate"}),
        json.dumps(GOOD | {"context": "gripper " * 8}),
        json.dumps(GOOD | {"context": "Ящик упал"}),
        json.dumps(GOOD | {"context": "!!! ???"}),
    ],
)
async def test_an_unusable_answer_is_known_by_its_cause(answer: str) -> None:
    for result in (await asked(answer), parse_answer(answer, Asked(TEXT))):
        assert result.annotation is None
        assert result.fallback is FallbackCause.INVALID_OUTPUT


@pytest.mark.parametrize(
    ("generate", "cause"),
    [("unavailable", FallbackCause.UNAVAILABLE), ("refuse", FallbackCause.INPUT_REFUSED)],
)
async def test_a_model_that_does_not_answer_is_known_by_its_cause(generate: str, cause: FallbackCause) -> None:
    assert (await asked(generate)).fallback is cause


def test_tags_are_cleaned_and_bounded_before_they_are_stored() -> None:
    bad = ["\ud83d", "x" * 5000, "<script>alert</script>", "", "\x00\x1b[31m", *[f"t{i}" for i in range(200)]]
    annotation = read({"context": "crate\u0007", "keywords": ["crate"], "tags": bad}).annotation
    assert annotation is not None
    assert len(annotation.tags) <= 5
    for tag in annotation.tags:
        tag.encode("utf-8")
        assert 0 < len(tag) <= 48
        assert not set(tag) & set("<>\x00\x1b")
    assert annotation.context == "crate"


def test_tags_made_of_the_instructions_words_are_dropped() -> None:
    result = read(GOOD | {"tags": ["JSON object", "keywords", "logistics"]})
    assert result.annotation is not None
    assert result.annotation.tags == ("logistics",)
    assert result.dropped == 2


def test_the_same_word_in_other_letters_is_one_keyword() -> None:
    annotation = read(GOOD | {"keywords": ["Crate", "crate", "CRATE", "oranges"]}).annotation
    assert annotation is not None
    assert annotation.keywords == ("Crate", "oranges")


def test_a_context_in_english_of_a_note_in_another_language_is_refused() -> None:
    text = "Der Greifer hat die Kiste mit den Orangen fallen lassen"
    english = {"context": "The Kiste was dropped", "keywords": ["Kiste"], "tags": ["lager"]}
    assert read(english, text).annotation is None
    assert read(english | {"context": "Die Kiste ist gefallen"}, text).annotation is not None


def test_links_are_read_with_kind_and_reason() -> None:
    (link,) = read(WHOLE).links
    assert (link.neighbour, link.kind, link.reason) == (0, LinkKind.CAUSAL, "wet floor")


@pytest.mark.parametrize("number", [0, -1, 4, 99, "1", 1.0, True, None, [1]])
def test_a_link_to_a_number_that_was_not_shown_is_dropped(number: object) -> None:
    result = read(WHOLE | {"links": [{"n": number, "kind": "causes", "why": "wet floor"}]})
    assert result.links == ()
    assert result.dropped == 1
    assert result.annotation is not None


@pytest.mark.parametrize("kind", ["owns", "", "CAUSES ", 3, None, "duplicate"])
def test_a_link_of_no_known_kind_is_dropped(kind: object) -> None:
    assert read(WHOLE | {"links": [{"n": 1, "kind": kind, "why": "wet floor"}]}).links == ()


def test_a_link_that_quotes_the_examples_is_dropped() -> None:
    assert read(WHOLE | {"links": [{"n": 1, "kind": "follows", "why": "glazing, then the kiln"}]}).links == ()


def test_a_reason_that_says_nothing_becomes_a_plain_one() -> None:
    for why in ("", "....", "so so so so so so so so", None):
        (link,) = read(WHOLE | {"links": [{"n": 3, "kind": "contradicts", "why": why}]}).links
        assert link.reason == "the two cannot both hold"


def test_one_neighbour_is_linked_once() -> None:
    twice = [{"n": 1, "kind": "causes", "why": "wet"}, {"n": 1, "kind": "similar", "why": "aisle"}]
    assert [link.kind for link in read(WHOLE | {"links": twice}).links] == [LinkKind.CAUSAL]


def test_a_neighbours_new_context_is_read_and_checked() -> None:
    good = {"n": 2, "context": "Oranges that were dropped later", "tags": ["incident"]}
    bad = [{"n": 9, "context": "x y", "tags": []}, {"n": 1, "context": "Abgelöste Fagottprobe", "tags": ["x"]}]
    result = read(WHOLE | {"updates": [good, *bad, {"n": 2, "context": "again", "tags": []}]})
    assert [(one.neighbour, one.context) for one in result.updates] == [(1, "Oranges that were dropped later")]
    assert result.dropped == 3


@pytest.mark.parametrize(
    ("context", "stands"),
    [
        ("The gripper let a crate of oranges fall.", True),
        ("Something slipped and broke.", True),
        ("Lunch is at noon", False),
        ("A crate fell on Monday.", False),
    ],
)
def test_a_context_is_made_of_the_memorys_words_or_of_nobodys(context: str, stands: bool) -> None:
    assert (read(WHOLE | {"context": context}).annotation is not None) is stands


def test_the_name_of_another_speaker_is_another_memorys_word() -> None:
    told = read(GOOD | {"context": "Ana: a crate fell"}, neighbours=("Ana: all crates are counted",))
    assert told.annotation is None


def test_tags_keywords_and_reasons_hold_no_word_of_a_third_memory() -> None:
    links = [{"n": 1, "kind": "causes", "why": "as at noon"}, {"n": 2, "kind": "follows", "why": "it came monday"}]
    updates = [{"n": 2, "context": "Oranges that lay in a wet aisle.", "tags": ["fruit"]}]
    told = read(
        GOOD
        | {"tags": ["lunch", "incident"], "keywords": ["crate", "crate wet"]}
        | {"links": links, "updates": updates}
    )
    assert told.annotation is not None
    assert (told.annotation.tags, told.annotation.keywords) == (("incident",), ("crate",))
    assert [link.reason for link in told.links] == ["one led to the other", "it came monday"]
    assert told.updates == ()  # the wet aisle is the first neighbour's


def test_a_bad_annotation_does_not_take_good_links_with_it() -> None:
    result = read(WHOLE | {"keywords": ["nothing of it"]})
    assert result.annotation is None
    assert len(result.links) == 1


async def test_an_answer_that_lacks_a_field_falls_back_whole() -> None:
    assert (await asked(json.dumps(GOOD), NEIGHBOURS)).fallback is FallbackCause.INVALID_OUTPUT


@given(st.text(max_size=300))
def test_any_answer_is_parsed_or_refused_without_an_error(answer: str) -> None:
    result = parse_answer(answer, Asked(TEXT, neighbours=NEIGHBOURS))
    assert result.annotation is None or result.annotation.keywords


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["context", "keywords", "tags", "links", "updates", "n", "kind", "why"]),
                inner,
                max_size=5,
            )
        ),
        max_leaves=20,
    )
)
def test_any_object_is_read_without_an_error_and_names_shown_neighbours_only(answer: object) -> None:
    result = read(answer)
    numbers = [one.neighbour for one in result.links] + [one.neighbour for one in result.updates]
    assert all(0 <= number < len(NEIGHBOURS) for number in numbers)
