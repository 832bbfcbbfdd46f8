"""Generations share passes, join and leave between them, and do not touch each other (a tiny model)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from clag_server.models.torch_generate import Generator, RefusedError
from clag_server.models.torch_job import Failed, Finished, Piece
from tests.models.tiny import Passes, load, make_folder, run, tiny_folder

__all__ = ["tiny_folder"]

RANDOM = random.Random(3)  # noqa: S311 - test data
ROLE = "Describe the note between the marks as one object. "
PROMPTS = [ROLE + "n" * RANDOM.randrange(1, 90) + str(i) for i in range(9)]
PROMPTS += ["short", "x", "猫は屋根にいる", "other words that share nothing with the rest " * 4]


def generator(folder: Path, *, slots: int = 4, prefill: int = 32, prefix_bytes: int = 0) -> Generator:
    return Generator(
        load(folder), slots=slots, context_tokens=512, prefill_tokens=prefill, prefix_bytes=prefix_bytes
    )


def submit_all(engine: Generator, prompts: list[str], tokens: int = 12, priority: int = 1) -> None:
    for i, prompt in enumerate(prompts):
        engine.submit(i, prompt, None, tokens + i % 3, priority)


def texts(engine: Generator, prompts: list[str]) -> dict[int, str]:
    submit_all(engine, prompts)
    return {one.id: one.text for one in run(engine) if isinstance(one, Finished)}


def alone(folder: Path, prompts: list[str]) -> dict[int, str]:
    """Each prompt in an engine of its own, in one piece: what every other way must give."""
    found = {}
    for i, prompt in enumerate(prompts):
        engine = generator(folder, slots=1, prefill=512)
        engine.submit(i, prompt, None, 12 + i % 3, 1)
        found.update({one.id: one.text for one in run(engine) if isinstance(one, Finished)})
    return found


@pytest.fixture(scope="module")
def expected(tiny_folder: Path) -> dict[int, str]:
    return alone(tiny_folder, PROMPTS)


def test_a_prompt_is_continued_as_the_library_does(tiny_folder: Path, expected: dict[int, str]) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tiny_folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    for i, prompt in enumerate(PROMPTS):
        ids = torch.tensor([tokenizer.encode(prompt)])
        out = model.generate(ids, max_new_tokens=12 + i % 3, do_sample=False, pad_token_id=0)[0, ids.shape[1] :]
        assert expected[i] == tokenizer.decode(out, skip_special_tokens=True)
    assert len(set(expected.values())) > len(PROMPTS) // 2, "the prompts must matter to the model"


@pytest.mark.parametrize(("slots", "prefill"), [(1, 8), (3, 16), (8, 64), (32, 256)])
@pytest.mark.parametrize("prefix_bytes", [0, 1 << 20])
def test_a_text_does_not_depend_on_who_shares_the_passes(
    tiny_folder: Path, expected: dict[int, str], slots: int, prefill: int, prefix_bytes: int
) -> None:
    engine = generator(tiny_folder, slots=slots, prefill=prefill, prefix_bytes=prefix_bytes)
    assert texts(engine, PROMPTS) == expected
    assert texts(engine, list(PROMPTS)) == expected, "also when rows and beginnings were used before"


def test_a_beginning_that_prompts_share_is_read_once(tiny_folder: Path) -> None:
    engine = generator(tiny_folder, slots=8, prefill=64, prefix_bytes=1 << 20)
    prompts = [ROLE + f"note {i}" for i in range(8)]
    submit_all(engine, prompts)
    done = [one for one in run(engine) if isinstance(one, Finished)]
    whole = sum(len(prompt) for prompt in prompts)
    assert sum(one.tokens_in for one in done) < whole / 3
    assert engine.prefixes.hits == 7
    again = generator(tiny_folder, slots=8, prefill=64)
    submit_all(again, prompts)
    assert sum(one.tokens_in for one in run(again) if isinstance(one, Finished)) == whole


def test_kept_beginnings_stay_within_their_memory(tiny_folder: Path) -> None:
    limit = 60_000
    engine = generator(tiny_folder, prefix_bytes=limit)
    for i in range(30):
        submit_all(engine, [f"profile {i:04d} of a cluster of its own, " + end for end in "abc"], tokens=2)
        run(engine)
        assert engine.prefixes.nbytes <= limit
    assert engine.prefixes.hits > 30


def test_a_short_generation_leaves_and_a_waiting_one_joins_while_a_long_one_runs(tiny_folder: Path) -> None:
    engine = generator(tiny_folder, slots=4)
    engine.submit(1, "long", None, 60, 1)
    for i in range(2, 6):
        engine.submit(i, f"short {i}", None, 3, 1)
    order = [one.id for one in run(engine) if isinstance(one, Finished)]
    assert order == [2, 3, 4, 5, 1]


def test_a_pass_reads_at_most_one_piece_and_the_urgent_prompt_overtakes(tiny_folder: Path) -> None:
    model = load(tiny_folder)
    passes = Passes(model)
    engine = Generator(model, slots=4, context_tokens=512, prefill_tokens=16)
    engine.submit(1, "l" * 300, None, 5, 2)
    for _ in range(3):
        engine.step()
    engine.submit(2, "urgent", None, 2, 0)
    order = [one.id for one in run(engine) if isinstance(one, Finished)]
    assert order == [2, 1]
    assert max(rows * tokens for rows, tokens in passes.shapes) <= 16
    urgent = next(i for i, (_, tokens) in enumerate(passes.shapes) if tokens == 6)
    assert urgent == 3, "it is read in the very next pass"


def test_bulk_work_leaves_rows_for_someone_who_waits(tiny_folder: Path) -> None:
    engine = generator(tiny_folder, slots=4)
    submit_all(engine, ["bulk"] * 10, tokens=50, priority=2)
    for _ in range(12):
        engine.step()
    engine.submit(99, "someone waits", None, 2, 0)
    first = next(one for one in run(engine) if isinstance(one, Finished))
    assert first.id == 99


def test_bulk_work_is_not_starved_by_a_steady_stream(tiny_folder: Path) -> None:
    now = 0.0
    engine = Generator(load(tiny_folder), slots=1, context_tokens=128, prefill_tokens=64, clock=lambda: now)
    engine.submit(0, "bulk", None, 2, 2)
    done: list[int] = []
    for i in range(1, 60):
        engine.submit(i, "organize", None, 2, 1)
        engine.submit(100 + i, "organize", None, 2, 1)
        now += 1.0
        while not done or done[-1] >= 0:
            events = [one.id for one in engine.step() if isinstance(one, Finished)]
            done += events
            if events:
                break
        if 0 in done:
            break
    assert 10 <= len(done) <= 25, "after about ten seconds more than others, though some of these still wait"


def test_a_cancelled_generation_frees_its_row(tiny_folder: Path) -> None:
    engine = generator(tiny_folder, slots=3)
    submit_all(engine, ["one", "two", "three", "four"], tokens=200)
    for _ in range(5):
        engine.step()
    for i in range(4):
        engine.cancel(i)
    engine.submit(9, "five", None, 3, 1)
    assert [one.id for one in run(engine) if isinstance(one, Finished)] == [9]
    assert not engine.busy


def test_pieces_of_a_stream_are_the_text(tiny_folder: Path) -> None:
    engine = generator(tiny_folder)
    engine.submit(77, "tell", None, 40, 0, streamed=True)
    submit_all(engine, ["beside"] * 2)
    events = [one for one in run(engine) if one.id == 77]
    whole = next(one for one in events if isinstance(one, Finished))
    pieces = [one.text for one in events if isinstance(one, Piece)]
    assert "".join(pieces) == whole.text
    assert len(pieces) > 5


def test_a_prompt_that_leaves_no_room_is_refused_with_the_limit(tiny_folder: Path) -> None:
    engine = generator(tiny_folder)
    with pytest.raises(RefusedError, match="the limit is 512"):
        engine.submit(1, "l" * 500, None, 20, 1)
    assert not engine.busy


def out_of_memory() -> Exception:
    return RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")


@pytest.mark.parametrize("fits", [1, 2, 5])
def test_where_memory_is_short_passes_are_halved_and_every_text_is_the_same(
    tiny_folder: Path, expected: dict[int, str], fits: int
) -> None:
    model = load(tiny_folder)
    passes = Passes(model)
    passes.fault = lambda ids: out_of_memory() if ids.shape[0] > fits else None
    engine = Generator(model, slots=8, context_tokens=512, prefill_tokens=128)
    assert texts(engine, PROMPTS) == expected
    assert max(rows for rows, _ in passes.shapes) <= fits


def test_a_slab_that_cannot_grow_goes_on_with_fewer_rows(
    tiny_folder: Path, expected: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from clag_server.models.torch_cache import KvShape

    empty = KvShape.empty

    def scarce(self: KvShape, rows: int, tokens: int) -> object:
        if rows * tokens > 9 * 256:
            raise out_of_memory()
        return empty(self, rows, tokens)

    long = "p" * 400
    engine = generator(tiny_folder, slots=8, prefill=64)
    monkeypatch.setattr(KvShape, "empty", scarce)
    submit_all(engine, [*PROMPTS, long])
    events = run(engine)
    found = {one.id: one.text for one in events if isinstance(one, Finished)}
    assert found.pop(len(PROMPTS)) == alone(tiny_folder, [*PROMPTS, long])[len(PROMPTS)]
    assert found == expected
    assert not any(isinstance(one, Failed) for one in events)


def test_a_request_for_which_there_is_no_memory_at_all_fails_alone(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clag_server.models.torch_cache import KvShape

    empty = KvShape.empty

    def scarce(self: KvShape, rows: int, tokens: int) -> object:
        if tokens > 256:
            raise out_of_memory()
        return empty(self, rows, tokens)

    engine = generator(tiny_folder, slots=4)
    monkeypatch.setattr(KvShape, "empty", scarce)
    submit_all(engine, ["one", "two", "l" * 300])
    events = run(engine)
    assert [one.id for one in events if isinstance(one, Failed)] == [2]
    assert sorted(one.id for one in events if isinstance(one, Finished)) == [0, 1]


@pytest.mark.parametrize("where", ["in the prompt", "in the text"])
def test_a_request_that_the_model_cannot_bear_fails_alone(
    tiny_folder: Path, expected: dict[int, str], where: str
) -> None:
    model = load(tiny_folder)
    passes = Passes(model)
    engine = Generator(model, slots=8, context_tokens=512, prefill_tokens=128)
    poison = model.tokenizer.encode(["~"])[0][0]
    reading = where == "in the prompt"
    passes.fault = lambda ids: (
        ValueError("index out of range") if (ids.shape[1] > 1) == reading and poison in ids else None
    )
    submit_all(engine, PROMPTS)
    constraint = None if reading else 'root ::= [ab] "~" [cd]'
    engine.submit(50, "bad ~ note" if reading else "fine", constraint, 20, 1)
    events = run(engine)
    assert [(one.id, one.reason) for one in events if isinstance(one, Failed)] == [
        (50, "ValueError: index out of range")
    ]
    assert {one.id: one.text for one in events if isinstance(one, Finished)} == expected


def test_memory_is_flat_over_many_requests_of_random_length(tiny_folder: Path) -> None:
    engine = generator(tiny_folder, slots=8, prefill=64, prefix_bytes=200_000)
    draw = random.Random(5)  # noqa: S311 - test data
    sizes = set()
    for round_ in range(12):
        for i in range(25):
            engine.submit(i, draw.choice("abc") * draw.randrange(1, 180), None, draw.randrange(1, 20), i % 3)
        assert len([one for one in run(engine) if isinstance(one, Finished)]) == 25
        if round_ > 1:
            sizes.add(engine.slab_bytes)
        assert engine.prefixes.nbytes <= 200_000
    assert len(sizes) == 1


def test_two_seeds_give_two_models(tmp_path: Path, tiny_folder: Path) -> None:
    other = make_folder(tmp_path, seed=8)
    assert alone(other, PROMPTS[:3]) != alone(tiny_folder, PROMPTS[:3])
