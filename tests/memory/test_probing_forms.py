"""The probe finds the form in which a model votes best, and spends little on forms that cannot be it."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from clag_server.memory import prompts
from clag_server.memory.competence import Competence
from clag_server.memory.probing.examination import Examination
from clag_server.memory.probing.forms import marks_of
from clag_server.memory.probing.questions import bundled
from clag_server.memory.probing.reports import report_from, report_to
from clag_server.models.api import ChoiceOption, ChoiceResult, ModelUnavailableError, Priority
from clag_server.models.scripted import Script, ScriptedEmbedder, ScriptedSlm
from clag_server.types.competence import (
    FULL_WEIGHT,
    ChoiceForm,
    ChoiceSetting,
    FormResult,
    ProbeReport,
    Skill,
    TrustPolicy,
)
from tests.memory.probing_doubles import all_knowing, examination, guessing, silent
from tests.memory.test_vote_forms import groups_of

RIGHT = {question.text: question.profiles[question.right].title for question in bundled().routing}


def right_letter(prompt: str) -> str:
    """The letter of the right group of a routing question."""
    note = json.loads(prompt.split("<<<\n")[2].split("\n>>>")[0])
    right = next(title for text, title in RIGHT.items() if text.startswith(note))
    return next(label for label, shown in groups_of(prompt).items() if shown.split(" / ")[0] == right)


def reads_letters(text: str, options: Sequence[ChoiceOption]) -> Sequence[float]:
    """A model that names the right letter, and knows nothing by channel score."""
    if len(text) > 1:
        return guessing(1)(text, options)
    return [-0.1 if text == right_letter(option.head) else -6.0 for option in options]


def writes_letters(prompt: str) -> str:
    if not prompt.endswith(prompts.CHOICE_END):
        return "no"
    return json.dumps({"group": right_letter(prompt)})


async def tried(
    script: Script, *, slm: ScriptedSlm | None = None
) -> tuple[Examination, dict[ChoiceForm, FormResult]]:
    running = examination(script)
    if slm is not None:
        running = Examination(slm, ScriptedEmbedder(Script), link_cosine=0.55)
    marks = await running.run(silent)
    assert marks[0].skill is Skill.ROUTING
    forms = {one.form: one for one in running.forms}
    best = forms[running.form]
    assert (marks[0].questions, marks[0].accuracy, marks[0].weight) == (best.questions, best.accuracy, best.weight)
    return running, forms


async def test_a_model_that_only_reads_letters_votes_by_letter() -> None:
    running, forms = await tried(Script(choose=reads_letters, generate="no"))
    assert running.form is ChoiceForm.LETTER
    assert (forms[ChoiceForm.LETTER].accuracy, forms[ChoiceForm.LETTER].weight) == (1.0, FULL_WEIGHT)
    assert forms[ChoiceForm.CHANNEL].weight == 0
    assert forms[ChoiceForm.JSON].weight == 0


async def test_a_model_that_only_writes_votes_in_json_also_without_log_probabilities() -> None:
    class WithoutScores(ScriptedSlm):
        async def choose(
            self,
            text: str,
            options: Sequence[ChoiceOption],
            *,
            priority: Priority,
            deadline_s: float | None = None,
        ) -> ChoiceResult:
            raise ModelUnavailableError("no log-probabilities here")

    running, forms = await tried(Script(), slm=WithoutScores(lambda: Script(generate=writes_letters)))
    assert running.form is ChoiceForm.JSON
    assert (forms[ChoiceForm.JSON].accuracy, forms[ChoiceForm.JSON].weight) == (1.0, FULL_WEIGHT)
    assert forms[ChoiceForm.CHANNEL].valid_rate == forms[ChoiceForm.LETTER].valid_rate == 0


async def test_among_equally_good_forms_the_channel_score_stays() -> None:
    def knows_all(text: str, options: Sequence[ChoiceOption]) -> Sequence[float]:
        return reads_letters(text, options) if len(text) == 1 else all_knowing(text, options)

    running, forms = await tried(Script(choose=knows_all, generate=writes_letters))
    assert running.form is ChoiceForm.CHANNEL
    assert [forms[form].weight for form in ChoiceForm] == [FULL_WEIGHT] * 3


@pytest.mark.parametrize("choose", ["first", "last", guessing(4)])
async def test_a_model_that_reads_no_letters_is_asked_a_few_and_keeps_the_channel_score(choose: object) -> None:
    script = Script(choose=choose, generate='{"group": "B"}')  # type: ignore[arg-type]
    running, forms = await tried(script)
    assert running.form is ChoiceForm.CHANNEL
    for form in (ChoiceForm.LETTER, ChoiceForm.JSON):
        assert forms[form].weight == 0
        assert 5 <= forms[form].questions <= 20 < len(bundled().routing)


async def test_an_interrupted_trial_of_a_form_goes_on_where_it_was() -> None:
    answered: list[str] = []
    away = [True]

    def writes(prompt: str) -> str:
        if prompt.endswith(prompts.CHOICE_END):
            if len(answered) == 12 and away[0]:
                raise ModelUnavailableError("gone", 0.01)
            answered.append(prompt)
        return writes_letters(prompt)

    script = Script(choose=guessing(2), generate=writes)
    running = examination(script)
    with pytest.raises(ModelUnavailableError):
        await running.run(silent)
    away[0] = False
    await running.run(silent)
    assert running.form is ChoiceForm.JSON
    assert len(answered) == len(set(answered)) == len(bundled().routing)


def report(form: ChoiceForm, **weights: float) -> ProbeReport:
    forms = tuple(
        FormResult(one, 60, 0.9, 0.8, 0.95, 0.5, 1.0, 0.0, weights.get(one.name, 0.0)) for one in ChoiceForm
    )
    best = next(one for one in forms if one.form is form)
    return ProbeReport("m", "v", (marks_of(best),), 1.0, 1, forms, form)


@pytest.mark.parametrize(
    ("setting", "form", "weight"),
    [
        (ChoiceSetting.AUTO, ChoiceForm.LETTER, 2.0),
        (ChoiceSetting.LETTER, ChoiceForm.LETTER, 2.0),
        (ChoiceSetting.CHANNEL, ChoiceForm.CHANNEL, 0.5),
        (ChoiceSetting.JSON, ChoiceForm.JSON, 0.0),
    ],
)
def test_votes_have_the_form_that_is_set_else_the_best_and_the_weight_that_form_earned(
    setting: ChoiceSetting, form: ChoiceForm, weight: float
) -> None:
    competence = Competence(TrustPolicy.PROBE, setting)
    competence.learned(report(ChoiceForm.LETTER, CHANNEL=0.5, LETTER=2.0))
    assert competence.form is form
    assert competence.trust.weight(Skill.ROUTING) == weight


def test_what_is_known_of_forms_is_kept_and_read_again_and_older_outcomes_have_none() -> None:
    known = report(ChoiceForm.JSON, JSON=1.0)
    assert report_from(json.loads(json.dumps(report_to(known)))) == known
    older = {name: value for name, value in report_to(known).items() if name not in ("forms", "form")}
    assert (report_from(older).forms, report_from(older).form) == ((), ChoiceForm.CHANNEL)
    with pytest.raises(ValueError, match="marks"):
        report_from({**report_to(known), "forms": [{"form": "JSON"}]})
