"""A schema admits exactly its values: by its grammar, by its check, and both are the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clag_server.models.errors import UnusableCause, UnusableOutputError
from clag_server.models.number_grammar import whole_number
from clag_server.models.schema import (
    Among,
    ListOf,
    Object,
    OneOf,
    Schema,
    Text,
    Whole,
    ending_of,
    grammar_of,
    json_schema_of,
    parse,
)
from tests.models.tiny import load, run, tiny_folder

if TYPE_CHECKING:
    from clag_server.models.torch_generate import Generator

__all__ = ["tiny_folder"]

NOTE = Object(
    (
        ("context", Text(3, 40)),
        ("kind", OneOf(("fact", "wish", "größer & so"))),
        ("keywords", ListOf(Text(2, 8), 0, 3)),
        ("links", ListOf(Object((("to", Whole(0, 120)), ("why", OneOf(("same", "cause"))))), 0, 2)),
    )
)
FINE = '{"context": "the dock", "kind": "wish", "keywords": ["dock"], "links": [{"to": 7, "why": "same"}]}'

plain = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"\\\x7f'), min_size=1, max_size=6
)
bounds = st.tuples(st.integers(0, 3), st.integers(0, 4)).map(lambda one: (one[0], one[0] + one[1]))
leaves: st.SearchStrategy[Schema] = st.one_of(
    bounds.map(lambda one: Text(*one)),
    st.lists(plain, min_size=1, max_size=3, unique=True).map(lambda one: OneOf(tuple(one))),
    st.tuples(st.integers(-2000, 2000), st.integers(0, 3000)).map(lambda one: Whole(one[0], one[0] + one[1])),
)
schemas: st.SearchStrategy[Schema] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(inner, bounds).map(lambda one: ListOf(one[0], *one[1])),
        st.lists(st.tuples(plain, inner), min_size=1, max_size=3, unique_by=lambda one: one[0]).map(
            lambda one: Object(tuple(one))
        ),
    ),
    max_leaves=4,
)


def accepts(grammar: str, text: str) -> bool:
    import xgrammar.testing

    return bool(xgrammar.testing._is_grammar_accept_string(grammar, text))


@given(st.integers(-3000, 3000), st.integers(0, 4000), st.data())
@settings(max_examples=60, deadline=None)
def test_a_range_of_whole_numbers_admits_its_numbers_and_no_other(
    low: int, width: int, data: st.DataObject
) -> None:
    high = low + width
    grammar = f"root ::= {whole_number(low, high)}\n"
    near = data.draw(st.lists(st.integers(low - 15, high + 15), min_size=8, max_size=8))
    for number in {low, high, low - 1, high + 1, 0, *near}:
        assert accepts(grammar, str(number)) == (low <= number <= high), number
    for text in ("", "-", "+1", "01", "-0", "1.0", " 1"):
        assert not accepts(grammar, text)


def test_an_answer_is_read_with_prose_around_it() -> None:
    value = parse(NOTE, f"Sure! {FINE} Hope it helps.")
    assert value == json.loads(FINE)
    assert accepts(grammar_of(NOTE), FINE)


@pytest.mark.parametrize(
    ("text", "finished", "cause"),
    [
        ("", True, UnusableCause.NOT_JSON),
        ("no object here", True, UnusableCause.NOT_JSON),
        (FINE[:40], False, UnusableCause.CUT),
        (FINE[:40], True, UnusableCause.NOT_JSON),
        ("[" * 100_000, True, UnusableCause.NOT_JSON),
        (json.dumps(json_schema_of(NOTE)), True, UnusableCause.WRONG_FIELDS),
        (FINE.replace('"kind": "wish", ', ""), True, UnusableCause.WRONG_FIELDS),
        (FINE.replace('"wish"', "2"), True, UnusableCause.WRONG_FIELDS),
        (FINE.replace('"wish"', '"hope"'), True, UnusableCause.OUT_OF_BOUNDS),
        (FINE.replace("7", "2.0"), True, UnusableCause.WRONG_FIELDS),
        (FINE.replace("7", "true"), True, UnusableCause.WRONG_FIELDS),
        (FINE.replace("7", "-1"), True, UnusableCause.OUT_OF_BOUNDS),
        (FINE.replace("7", "121"), True, UnusableCause.OUT_OF_BOUNDS),
        (FINE.replace("the dock", "\\ud83d dock"), True, UnusableCause.OUT_OF_BOUNDS),
        (FINE.replace("the dock", "x" * 5000), True, UnusableCause.OUT_OF_BOUNDS),
        (FINE.replace("the dock", "a\\u0007bc"), True, UnusableCause.OUT_OF_BOUNDS),
        (FINE.replace('["dock"]', json.dumps(["tag"] * 200)), True, UnusableCause.OUT_OF_BOUNDS),
    ],
)
def test_an_unusable_answer_says_why(text: str, finished: bool, cause: UnusableCause) -> None:
    with pytest.raises(UnusableOutputError) as caught:
        parse(NOTE, text, finished=finished)
    assert caught.value.cause is cause
    assert len(caught.value.text) <= 200


@pytest.mark.parametrize(
    "bad",
    [
        lambda: Text(3, 2),
        lambda: Text(-1, 2),
        lambda: OneOf(()),
        lambda: OneOf(("a", "a")),
        lambda: OneOf(('say "a"',)),
        lambda: Whole(2, 1),
        lambda: ListOf(Text(0, 1), 0, 1000),
        lambda: Object(()),
        lambda: Object((("a", Text(0, 1)), ("a", Text(0, 1)))),
    ],
)
def test_a_schema_that_admits_nothing_sensible_is_refused(bad: object) -> None:
    assert callable(bad)
    with pytest.raises(ValueError):
        bad()


@pytest.fixture(scope="module")
def wild(tiny_folder: Path) -> Generator:
    """A model of random weights writes whatever the grammar lets it: the hardest writer there is."""
    from clag_server.models.torch_generate import Generator

    return Generator(load(tiny_folder), slots=4, context_tokens=1000, prefill_tokens=64)


@given(schemas, plain)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_model_writes_under_a_schemas_grammar_is_a_value_of_the_schema(
    wild: Generator, schema: Schema, prompt: str
) -> None:
    from clag_server.models.torch_job import Finished

    ending = ending_of(schema)
    # One token a byte: little more room than an end takes, so that most texts would be cut.
    room = 4 + len(ending.encode()) * 5 // 4 + 6
    wild.submit(1, prompt, grammar_of(schema), room, 1, ending=ending)
    (answer,) = (one for one in run(wild) if isinstance(one, Finished))
    assert answer.finished
    parse(schema, answer.text)
    assert accepts(grammar_of(schema), answer.text)


def test_a_text_among_words_is_one_of_them_by_grammar_and_any_within_its_bounds_elsewhere() -> None:
    among = Among(("dock", "charger"), 2, 20)
    assert grammar_of(among) == 'root ::= ("\\"dock\\"" | "\\"charger\\"")\n'
    assert json_schema_of(among) == json_schema_of(Text(2, 20))
    assert parse(among, '"gripper"') == "gripper"
    assert ending_of(among) == '"charger"'
    with pytest.raises(UnusableOutputError):
        parse(among, '"x"')
    with pytest.raises(ValueError, match="characters"):
        Among(("a",), 2, 20)
