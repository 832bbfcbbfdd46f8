"""Text in which a grammar leaves no choice is read and not written, and nothing else changes (a tiny model)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from clag_server.models import torch_pass
from clag_server.models.schema import ListOf, Object, OneOf, Schema, Text, Whole, ending_of, grammar_of, parse
from clag_server.models.torch_forced import ForcedText
from clag_server.models.torch_generate import Generator
from clag_server.models.torch_job import Failed, Finished, Piece
from tests.models.tiny import Passes, load, make_folder, run, tiny_folder

__all__ = ["tiny_folder"]

PLAIN = 'root ::= "{\\"subject\\": \\"" [a-c]{4,4} "\\"}"'
ODD = Object(
    (
        ("größe & 猫 <|end|>", Text(1, 6)),
        ("🙂🙃", OneOf(("wish", "größer & so", "größte"))),
        ("links", ListOf(Object((("to", Whole(1, 3)), ("why", OneOf(("same", "cause"))))), 0, 2)),
    )
)
NOTE = Object((("context", Text(4, 12)), ("tags", ListOf(Text(2, 6), 1, 2)), ("n", Whole(0, 9))))
PROMPTS = ["one", "another, longer than the first", "dock", "the charger is behind the gate", "x", "雨"]


def engine_of(folder: Path, *, slots: int = 4, prefill: int = 64) -> Generator:
    return Generator(load(folder), slots=slots, context_tokens=700, prefill_tokens=prefill)


def submit(engine: Generator, number: int, prompt: str, schema: Schema, tokens: int, **options: bool) -> None:
    engine.submit(number, prompt, grammar_of(schema), tokens, 1, ending=ending_of(schema), **options)


def finished(engine: Generator) -> dict[int, Finished]:
    return {one.id: one for one in run(engine) if isinstance(one, Finished)}


def said(done: dict[int, Finished]) -> dict[int, tuple[str, bool, int]]:
    return {number: (one.text, one.finished, one.tokens_out) for number, one in done.items()}


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """In its context every token is written: with one token a byte, every other way must give the same."""
    monkeypatch.setattr(ForcedText, "take", lambda *_: [])
    return monkeypatch


def submit_mixed(engine: Generator) -> None:
    """Rows that jump and rows that are free."""
    for i, prompt in enumerate(PROMPTS):
        submit(engine, i, prompt, (NOTE, ODD)[i % 2], 230)
        engine.submit(100 + i, prompt, None, 20 + i, 1)


@pytest.fixture(scope="module")
def alone(tiny_folder: Path) -> dict[int, tuple[str, bool, int]]:
    """What each of them gives when every token is written and nobody shares a pass."""
    found: dict[int, tuple[str, bool, int]] = {}
    model = load(tiny_folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ForcedText, "take", lambda *_: [])
        for i, prompt in enumerate(PROMPTS):
            for number in (i, 100 + i):
                engine = Generator(model, slots=1, context_tokens=700, prefill_tokens=512)
                if number < 100:
                    submit(engine, number, prompt, (NOTE, ODD)[i % 2], 230)
                else:
                    engine.submit(number, prompt, None, 20 + i, 1)
                found |= said(finished(engine))
    return found


def test_forced_text_is_read_with_the_prompt_and_takes_no_pass_of_its_own(tiny_folder: Path) -> None:
    model = load(tiny_folder)
    passes = Passes(model)
    engine = Generator(model, slots=4, context_tokens=512, prefill_tokens=64)
    engine.submit(1, "tell", PLAIN, 40, 1)
    done = finished(engine)[1]
    assert done.text.startswith('{"subject": "')
    assert done.text.endswith('"}')
    assert (done.tokens_out, done.forced_tokens) == (len(done.text), len('{"subject": ""}'))
    letters = 4
    assert len(passes.shapes) == letters, "the prompt's pass gives the first letter, and no pass the end"


def test_forced_text_in_the_middle_is_read_by_the_next_pass(tiny_folder: Path) -> None:
    model = load(tiny_folder)
    passes = Passes(model)
    engine = Generator(model, slots=4, context_tokens=512, prefill_tokens=64)
    engine.submit(1, "tell", 'root ::= [ab] "cdefgh: " [xy] "."', 40, 1)
    done = finished(engine)[1]
    assert len(done.text) == 11
    assert len(passes.shapes) == 3, "a, then b's forced text but its last sign, then that sign and the letter"


@pytest.mark.parametrize(("slots", "prefill"), [(2, 16), (4, 64), (16, 512)])
def test_rows_that_jump_and_free_rows_give_what_each_gives_alone(
    tiny_folder: Path, alone: dict[int, tuple[str, bool, int]], slots: int, prefill: int
) -> None:
    engine = engine_of(tiny_folder, slots=slots, prefill=prefill)
    submit_mixed(engine)
    done = finished(engine)
    assert said(done) == alone
    assert all(one.forced_tokens > 10 for number, one in done.items() if number < 100)
    assert not any(one.forced_tokens for number, one in done.items() if number >= 100)


def test_an_accelerators_padded_passes_give_the_same(
    tiny_folder: Path, alone: dict[int, tuple[str, bool, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_pass, "splits", lambda _: False)
    engine = engine_of(tiny_folder, slots=8)
    submit_mixed(engine)
    assert said(finished(engine)) == alone


@pytest.mark.parametrize("fits", [1, 3])
def test_passes_that_are_halved_give_the_same(
    tiny_folder: Path, alone: dict[int, tuple[str, bool, int]], fits: int
) -> None:
    model = load(tiny_folder)
    engine = Generator(model, slots=8, context_tokens=700, prefill_tokens=64)
    passes = Passes(model)
    rows = engine_rows(engine)
    passes.fault = lambda _: RuntimeError("can't allocate memory") if rows() > fits else None
    submit_mixed(engine)
    assert said(finished(engine)) == alone


def engine_rows(engine: Generator) -> Callable[[], int]:
    """How many rows the pass that runs has."""
    return lambda: engine._rows.slab._count


@pytest.mark.parametrize("after", [1, 4, 9, 15])
def test_after_a_fault_a_text_goes_on_where_it_was(
    tiny_folder: Path, alone: dict[int, tuple[str, bool, int]], after: int
) -> None:
    engine = engine_of(tiny_folder, slots=8)
    submit_mixed(engine)
    done: dict[int, Finished] = {}
    for _ in range(after):
        done |= {one.id: one for one in engine.step() if isinstance(one, Finished)}
    assert not engine.start_over(RuntimeError("a fault that is nobody's"))
    assert said(done | finished(engine)) == alone


def test_a_slab_that_loses_its_rows_gives_the_same(
    tiny_folder: Path, alone: dict[int, tuple[str, bool, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from clag_server.models.torch_cache import KvShape

    empty = KvShape.empty

    def scarce(self: KvShape, rows: int, tokens: int) -> object:
        if rows * tokens > 10 * 256:
            raise RuntimeError("can't allocate memory")
        return empty(self, rows, tokens)

    engine = engine_of(tiny_folder, slots=8)
    monkeypatch.setattr(KvShape, "empty", scarce)
    submit_mixed(engine)
    engine.submit(50, "p" * 300, None, 3, 1)
    events = run(engine)
    done = {one.id: one for one in events if isinstance(one, Finished)}
    assert done.pop(50).tokens_out == 3
    assert said(done) == alone
    assert not any(isinstance(one, Failed) for one in events)


@pytest.mark.parametrize("schema", [NOTE, ODD])
def test_a_limit_that_falls_anywhere_cuts_the_text_there(
    tiny_folder: Path, schema: Schema, written: pytest.MonkeyPatch
) -> None:
    engine = engine_of(tiny_folder, slots=32)

    def cut_everywhere() -> dict[int, tuple[str, bool, int]]:
        for limit in range(1, 100, 4):
            engine.submit(limit, "tell", grammar_of(schema), limit, 1)
        return said(finished(engine))

    expected = cut_everywhere()
    written.undo()
    found = cut_everywhere()
    assert found == expected
    assert all(tokens <= limit for limit, (_, _, tokens) in found.items())
    assert not found[1][1]


def test_an_answer_is_brought_to_its_end_before_its_limit(tiny_folder: Path) -> None:
    engine = engine_of(tiny_folder, slots=8)
    least = len(ending_of(ODD).encode()) * 5 // 4 + 4
    for i in range(12):
        submit(engine, i, f"note {i}", ODD, least + 2 * i)
    for done in finished(engine).values():
        assert done.finished
        parse(ODD, done.text)


def test_pieces_of_a_stream_are_the_text_with_its_forced_parts(
    tiny_folder: Path, alone: dict[int, tuple[str, bool, int]]
) -> None:
    engine = engine_of(tiny_folder)
    submit(engine, 1, PROMPTS[1], ODD, 230, streamed=True)
    submit(engine, 2, PROMPTS[2], NOTE, 230)
    events = [one for one in run(engine) if one.id == 1]
    whole = next(one for one in events if isinstance(one, Finished))
    pieces = [one.text for one in events if isinstance(one, Piece)]
    assert "".join(pieces) == whole.text == alone[1][0]
    assert 5 < len(pieces) < whole.tokens_out / 2


def test_a_generation_that_is_cancelled_between_jumps_frees_its_row(tiny_folder: Path) -> None:
    engine = engine_of(tiny_folder, slots=2)
    for i in range(4):
        submit(engine, i, "dock", ODD, 230)
    for _ in range(5):
        engine.step()
    for i in range(4):
        engine.cancel(i)
    submit(engine, 9, PROMPTS[0], NOTE, 230)
    assert list(finished(engine)) == [9]


def test_a_text_without_any_choice_is_given_whole(tiny_folder: Path) -> None:
    engine = engine_of(tiny_folder)
    engine.submit(1, "tell", 'root ::= "always this"', 40, 1)
    done = finished(engine)[1]
    assert (done.text, done.finished, done.tokens_out) == ("always this", True, 11)


def test_a_text_that_may_end_or_go_on_is_not_ended_for_the_model(tiny_folder: Path) -> None:
    engine = engine_of(tiny_folder)
    engine.submit(1, "tell", 'root ::= "ab" [cd]{0,9}', 40, 1)
    submit(engine, 2, "tell", Text(0, 3), 40)
    done = finished(engine)
    assert all(one.finished for one in done.values())
    assert done[1].forced_tokens <= 2


def test_a_forced_sign_is_left_to_the_model_where_it_may_write_it_and_what_follows_as_one(tmp_path: Path) -> None:
    model = load(make_folder(tmp_path, merges=[('"', ","), ('"', ":"), ("k", "e"), ("ke", "y")]))
    engine = Generator(model, slots=2, context_tokens=512, prefill_tokens=64)
    tokens = {text: i for i, text in enumerate(model.tokenizer.decode([i]) for i in range(model.vocabulary_size))}
    picker = engine._picker

    def forced(grammar: str, *out: str) -> list[str]:
        constraint = picker.constraint(grammar)
        ids = [tokens[one] for one in out]
        assert all(map(constraint.accept, ids))
        return [model.tokenizer.decode([one]) for one in picker.forced.take(constraint, ids, 40)]

    text = 'root ::= [ab] "\\", \\"key\\": \\"" [a-z]{1,9} "\\""'
    assert forced(text, "a") == ['",', " ", '"', "key", '":', " ", '"']
    assert forced('root ::= [ab] "key\\"" ("," | "]")', "a") == [], "the quote may be one with the comma"
    assert forced('root ::= [ab] "xkey\\"" ("," | "]")', "a") == ["x", "key"]
    assert forced('root ::= [ab] "xke" ("y" | "z")', "a") == [], "letters may be one with other letters"
    assert forced('root ::= [ab] "}"', "a") == ["}"], "at the end nothing follows"
