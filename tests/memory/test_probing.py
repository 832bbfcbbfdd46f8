"""What language models earn in the competence probe: a bad one nothing, a perfect one everything."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from clag_server.memory import prompts
from clag_server.memory.probing.examination import Examination
from clag_server.memory.probing.questions import bundled
from clag_server.models.api import ChoiceOption, ChoiceResult, ModelUnavailableError, Priority
from clag_server.models.scripted import Script, ScriptedEmbedder, ScriptedSlm
from clag_server.types.competence import FULL_WEIGHT, Skill
from tests.memory.probing_doubles import (
    all_knowing,
    examination,
    guessing,
    marks_of,
    silent,
    well_written,
)

CHOICES = (Skill.ROUTING, Skill.SELECTION)
WRITING = (Skill.ANNOTATION, Skill.EVOLUTION)


async def test_a_model_that_knows_everything_has_full_weight_at_every_skill() -> None:
    marks = await marks_of(Script(choose=all_knowing, generate=well_written))
    for skill, one in marks.items():
        assert one.accuracy == 1, skill
        assert one.valid_rate == 1, skill
        assert one.weight == FULL_WEIGHT, skill
        assert one.position_bias == pytest.approx(0), skill


@pytest.mark.parametrize("position", ["first", "last"])
async def test_a_model_that_always_names_one_position_is_found_out_and_decides_nothing(position: str) -> None:
    marks = await marks_of(Script(choose=position, generate=["{}"]))
    for skill in CHOICES:
        assert marks[skill].position_bias == pytest.approx(1)
        assert marks[skill].accuracy == pytest.approx(0.2)
        assert marks[skill].weight == 0


async def test_a_guessing_model_decides_nothing() -> None:
    marks = await marks_of(Script(choose=guessing(3), generate=["{}"]))
    assert [marks[skill].weight for skill in CHOICES] == [0, 0]
    assert all(0.05 < marks[skill].accuracy < 0.4 for skill in CHOICES)


async def test_a_model_that_knows_most_answers_and_guesses_the_rest_has_a_say() -> None:
    knows = random.Random(5)  # noqa: S311
    guess = guessing(5)
    marks = await marks_of(
        Script(
            choose=lambda text, options: (all_knowing if knows.random() < 0.85 else guess)(text, options),
            generate=["{}"],
        )
    )
    assert all(0 < marks[skill].weight <= FULL_WEIGHT for skill in CHOICES)
    assert all(marks[skill].accuracy > marks[skill].baseline for skill in CHOICES)


@pytest.mark.parametrize("misbehaviour", ["nan", "short", "refuse"])
async def test_unusable_scores_are_counted_and_leave_the_decision_to_vectors(misbehaviour: str) -> None:
    marks = await marks_of(Script(choose=misbehaviour, generate="refuse"))
    for one in marks.values():
        assert one.valid_rate == 0
        assert one.accuracy == 0
        assert one.weight == 0


@pytest.mark.parametrize(
    "answer",
    [
        'Sure! {"choice": "c2"} Hope it helps',
        '{"context": "celadon teapot in the kiln", "keywords": ["teapot"], "tags": ["pottery"]}',
        '{"context": "',
        "",
        "tag tag tag " * 400,
    ],
)
async def test_prose_echoes_of_the_prompt_and_repetition_are_no_annotations(answer: str) -> None:
    marks = await marks_of(Script(choose=all_knowing, generate=[answer]))
    for skill in WRITING:
        assert marks[skill].valid_rate == 0
        assert marks[skill].weight == 0
    assert all(marks[skill].weight == FULL_WEIGHT for skill in CHOICES)


async def test_a_model_that_repeats_the_note_but_links_at_random_evolves_nothing() -> None:
    noise = random.Random(1)  # noqa: S311

    def links_anything(prompt: str) -> str:
        note = prompt.rsplit('<<<\n"', 1)[1].split('"')[0]
        links = f'{{"n": {noise.randint(1, 3)}, "kind": "similar", "why": "alike"}}'
        return (
            f'{{"context": "{note[:60]}", "keywords": ["{note.split()[0]}"], "tags": ["x1"], "links": [{links}]}}'
        )

    marks = await marks_of(Script(choose=all_knowing, generate=links_anything))
    assert [marks[skill].weight for skill in WRITING] == [0, 0]


async def test_a_hopeless_writer_is_not_asked_all_questions() -> None:
    script = Script(choose=all_knowing, generate=["no"])
    marks = await marks_of(script)
    asked = [call.text for call in script.calls if call.kind == "generate"]
    written = [prompt for prompt in asked if not prompt.endswith(prompts.CHOICE_END)]
    assert len(written) == marks[Skill.ANNOTATION].questions + marks[Skill.EVOLUTION].questions
    assert len(written) < len(bundled().annotation) + len(bundled().evolution)


class _WithoutScores(ScriptedSlm):
    """A model whose server gives no log-probabilities."""

    async def choose(
        self,
        text: str,
        options: Sequence[ChoiceOption],
        *,
        priority: Priority,
        deadline_s: float | None = None,
    ) -> ChoiceResult:
        raise ModelUnavailableError("no log-probabilities here")


async def test_a_model_that_cannot_score_choices_may_still_write() -> None:
    slm = _WithoutScores(lambda: Script(generate=well_written))
    probed = Examination(slm, ScriptedEmbedder(Script), link_cosine=0.55)
    weights = {one.skill: one.weight for one in await probed.run(silent)}
    assert weights == {**dict.fromkeys(CHOICES, 0.0), **dict.fromkeys(WRITING, FULL_WEIGHT)}


async def test_an_interrupted_examination_goes_on_where_it_was() -> None:
    script = Script(choose=all_knowing, generate=well_written)
    running = examination(script)
    script.poison = bundled().selection[7].text
    with pytest.raises(ModelUnavailableError):
        await running.run(silent)
    script.poison = ""
    script.generate = "unavailable"
    with pytest.raises(ModelUnavailableError):
        await running.run(silent)
    script.generate = well_written
    marks = await running.run(silent)
    assert all(one.weight == FULL_WEIGHT for one in marks)
    asked = [call.text for call in script.calls if call.kind == "choose"]
    turned = {q.text for q in bundled().routing if q.turned}
    for question in bundled().routing:
        assert asked.count(question.text) == (2 if question.text in turned else 1)


async def test_an_absent_embedder_makes_the_probe_wait_as_an_absent_model_does() -> None:
    away = Script(embed="unavailable")
    script = Script(choose=all_knowing, generate=well_written)
    running = Examination(examination(script)._slm, ScriptedEmbedder(lambda: away), link_cosine=0.55)
    with pytest.raises(ModelUnavailableError):
        await running.run(silent)
    away.embed = "ok"
    assert {one.weight for one in await running.run(silent)} == {FULL_WEIGHT}


async def test_a_cancelled_examination_ends_at_once_and_asks_nothing_more() -> None:
    script = Script(choose="hang")
    task = asyncio.create_task(examination(script).run(silent))
    while not script.calls:  # noqa: ASYNC110 - the double tells nobody
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    asked = len(script.calls)
    await asyncio.sleep(0)
    assert len(script.calls) == asked


async def test_progress_counts_every_question_of_every_skill() -> None:
    heard: dict[str, list[tuple[int, int]]] = {}

    async def told(skill: str, done: int, total: int) -> None:
        heard.setdefault(skill, []).append((done, total))

    await examination(Script(choose=all_knowing, generate=well_written)).run(told)
    phases = ["routing", "routing by letter", "routing by json", "selection", "annotation", "evolution"]
    assert list(heard) == phases
    for counts in heard.values():
        assert counts == sorted(counts)
        assert counts[-1][0] == counts[-1][1]
