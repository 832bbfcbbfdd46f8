"""The scripted models behave as their script says, also when it changes under a running server."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from clag_server.models.api import (
    ChoiceOption,
    ModelTimeoutError,
    ModelUnavailableError,
    Priority,
    WrongShapeError,
)
from clag_server.models.schema import ListOf, Object, OneOf, Text, Whole
from clag_server.models.scripted import Script, ScriptedEmbedder, ScriptedSlm, ScriptError, from_file

NOW = Priority.INTERACTIVE
OPTIONS = [ChoiceOption("a", "Topic: battery and charging"), ChoiceOption("b", "Topic: people and jokes")]


async def test_texts_that_share_words_are_near() -> None:
    embedder = ScriptedEmbedder(Script)
    vectors = await embedder.embed(
        ["battery low at dock", "the battery is low", "Maria told a joke", "", "猫は屋根", "猫"], priority=NOW
    )
    assert vectors.shape == (6, 64)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-5)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2
    assert vectors[4] @ vectors[5] > 0.3


async def test_a_running_models_behaviour_follows_its_file(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text(json.dumps({"generate": ["one", "two"], "record": str(tmp_path / "log")}))
    embedder, slm = from_file(path)
    texts = [(await slm.generate("ask", grammar=None, max_tokens=9, priority=NOW)).text for _ in range(3)]
    assert texts == ["one", "two", "two"]
    scores = (await slm.choose("the battery was charging", OPTIONS, priority=NOW)).scores
    assert scores[0] > scores[1]
    path.write_text(json.dumps({"choose": "nan", "embed": "short", "generate": "unavailable"}))
    with pytest.raises(WrongShapeError):
        await slm.choose("text", OPTIONS, priority=NOW)
    with pytest.raises(WrongShapeError):
        await embedder.embed(["text"], priority=NOW)
    with pytest.raises(ModelUnavailableError):
        await slm.generate("ask", grammar=None, max_tokens=9, priority=NOW)
    path.write_text(json.dumps({"choose": "hang", "poison": "bad memory"}))
    with pytest.raises(ModelTimeoutError):
        await slm.choose("text", OPTIONS, priority=NOW, deadline_s=0.01)
    with pytest.raises(ModelUnavailableError):
        await embedder.embed(["fine", "a bad memory"], priority=NOW)
    recorded = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [one["kind"] for one in recorded] == ["generate", "generate", "generate", "choose"]
    assert recorded[-1]["options"][0] == ["a", "Topic: battery and charging"]


async def test_a_text_over_the_limit_is_marked_unfinished() -> None:
    slm = ScriptedSlm(lambda: script)
    script = Script(generate=["a b c d"])
    assert not (await slm.generate("ask", grammar=None, max_tokens=2, priority=NOW)).finished
    assert [call.text for call in script.calls] == ["ask"]


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"embed": "well"}', '{"choose": 3}', '{"generate": []}', '{"unknown": 1}']
)
def test_a_script_with_a_fault_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "script.json").write_text(text)
    with pytest.raises(ScriptError, match=r"script\.json"):
        from_file(tmp_path / "script.json")


async def test_a_random_model_answers_in_the_right_form_without_knowing_anything() -> None:
    tags = ListOf(Text(2, 9), 1, 3)
    wanted = Object(
        (("n", Whole(1, 3)), ("kind", OneOf(("causes", "similar"))), ("why", Text(3, 12)), ("tags", tags))
    )
    slm = ScriptedSlm(lambda: Script(choose="random", generate="random"))
    numbers, firsts = set(), 0
    for i in range(60):
        # An answer that is not a value of the schema would be an error here.
        answer = await slm.generate(f"note {i}: the dock", schema=wanted, max_tokens=99, priority=NOW)
        assert isinstance(answer.value, dict)
        numbers.add(answer.value["n"])
        scores = (await slm.choose(f"note {i}", OPTIONS, priority=NOW)).scores
        firsts += scores[0] > scores[1]
    assert numbers == {1, 2, 3}
    assert 15 < firsts < 45


async def test_what_a_random_model_says_depends_on_the_question_and_the_seed_alone() -> None:
    async def said(seed: int, text: str) -> tuple[object, ...]:
        slm = ScriptedSlm(lambda: Script(choose="random", generate="random", seed=seed))
        scores = (await slm.choose(text, OPTIONS, priority=NOW)).scores
        return (*scores, (await slm.generate(text, max_tokens=99, priority=NOW)).text)

    assert await said(1, "the dock moved") == await said(1, "the dock moved")
    assert await said(1, "the dock moved") != await said(2, "the dock moved")
    assert await said(1, "the dock moved") != await said(1, "the gate moved")
