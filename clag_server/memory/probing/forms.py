"""In which form a language model votes best: by channel score, by letter or by a letter in JSON.

All forms are asked the same routing questions and weighed in the same way. The channel score was measured first;
another form is tried on a sample of the questions, and on the rest only where it named the right cluster at
least as often as vectors do: a small model, which names one letter whatever it is asked, costs a few questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clag_server.memory import prompts
from clag_server.memory.probing.asking import UNUSABLE, cluster_options
from clag_server.memory.probing.questions import ChoiceQuestion
from clag_server.memory.probing.statistics import position_bias, wilson
from clag_server.memory.probing.weights import LEAST_VALID, Case, weigh_choices
from clag_server.memory.vote_forms import score_options, shown_order
from clag_server.models.api import ModelUnavailableError, Priority, SlmEngine
from clag_server.types.competence import ChoiceForm, FormResult, Skill, SkillResult

__all__ = ["FormAnswer", "Trial", "Tried", "ask_form", "best_of", "by_channel", "marks_of", "sample_first"]


@dataclass(frozen=True, slots=True)
class FormAnswer:
    """The answer to a question in some form.

    Attributes:
        scores: Of each candidate; None where the answer was unusable.
        chosen: Position at which the chosen candidate was shown; None likewise.
        placed: Position at which the right one was shown.
    """

    scores: tuple[float, ...] | None
    chosen: int | None
    placed: int

    @property
    def right(self) -> bool:
        """Whether the right candidate was chosen."""
        return self.chosen == self.placed


@dataclass(frozen=True, slots=True)
class Tried:
    """A form's marks, and the share of questions that it answers right together with the vectors.

    `solved` is over worlds of questions that its weight was not picked on.
    """

    result: FormResult
    solved: float


async def ask_form(slm: SlmEngine, question: ChoiceQuestion, form: ChoiceForm) -> FormAnswer:
    """Ask one routing question.

    Raises:
        ModelUnavailableError, ModelTimeoutError: The SLM is away.
    """
    options, text = cluster_options(question), prompts.routing_note(question.text)
    order = shown_order(text, options)
    placed = order.index(question.right)
    try:
        scores = await score_options(form, slm, text, options, priority=Priority.BULK)
    except UNUSABLE:
        return FormAnswer(None, None, placed)
    except ModelUnavailableError as error:
        if error.retry_after_s is None:
            return FormAnswer(None, None, placed)  # it never answers in this form
        raise
    return FormAnswer(scores, max(range(len(order)), key=lambda position: scores[order[position]]), placed)


def sample_first(questions: Sequence[ChoiceQuestion]) -> list[ChoiceQuestion]:
    """Return the questions, those of some worlds in all languages first: the sample that decides on the rest."""
    return sorted(questions, key=lambda question: not question.turned)


class Trial:
    """Marks one form.

    Args:
        form: The form.
        questions: All questions, in the order of `sample_first`.
        cosines: By vectors, one tuple a question.
    """

    def __init__(
        self, form: ChoiceForm, questions: Sequence[ChoiceQuestion], cosines: Sequence[tuple[float, ...]]
    ) -> None:
        self._form = form
        self._questions = questions
        self._cosines = cosines
        self._answers: list[FormAnswer] = []
        self._sample = sum(question.turned for question in questions)
        self._by_vectors = [
            Case(question.world, near, None, question.right).solved(0.0)
            for question, near in zip(questions, cosines, strict=True)
        ]

    def seen(self, _question: ChoiceQuestion, answer: FormAnswer) -> bool:
        """Take the next answer; returns whether it is worth asking on."""
        self._answers.append(answer)
        asked = len(self._answers)
        unusable = sum(one.chosen is None for one in self._answers)
        if unusable > (1 - LEAST_VALID) * len(self._questions):
            return False
        # Over the sample while it lasts, then over all: it must be able to name as many as vectors do.
        whole = self._sample if asked <= self._sample else len(self._questions)
        right = sum(one.right for one in self._answers)
        return right + whole - asked >= sum(self._by_vectors[:whole])

    def tried(self) -> Tried:
        """Return the marks; the weight is 0 unless every question was asked."""
        asked = len(self._answers)
        some = self._questions[:asked]
        given = [one for one in self._answers if one.chosen is not None]
        valid_rate = len(given) / max(asked, 1)
        bias = position_bias(
            [one.chosen for one in given if one.chosen is not None],
            [one.placed for one in given],
            len(self._questions[0].profiles),
        )
        cases = [
            Case(question.world, near, answer.scores, question.right)
            for question, near, answer in zip(some, self._cosines, self._answers, strict=False)
        ]
        weighed = weigh_choices(cases, valid_rate=valid_rate, bias=bias)
        accuracy = sum(one.right for one in self._answers) / max(asked, 1)
        low, high = wilson(accuracy, asked)
        result = FormResult(
            form=self._form,
            questions=asked,
            accuracy=accuracy,
            low=low,
            high=high,
            baseline=sum(self._by_vectors[:asked]) / max(asked, 1),
            valid_rate=valid_rate,
            position_bias=bias,
            weight=weighed.weight if asked == len(self._questions) else 0.0,
        )
        return Tried(result, weighed.accuracy)


def by_channel(routing: SkillResult, solved: float) -> Tried:
    """Return the channel score as a form, from the marks of routing that it earned."""
    result = FormResult(
        form=ChoiceForm.CHANNEL,
        questions=routing.questions,
        accuracy=routing.accuracy,
        low=routing.low,
        high=routing.high,
        baseline=routing.baseline,
        valid_rate=routing.valid_rate,
        position_bias=routing.position_bias,
        weight=routing.weight,
    )
    return Tried(result, solved)


def best_of(tried: Sequence[Tried]) -> FormResult:
    """Return the form that helps the vectors most; among equals, and where none may help, the first."""
    useful = [one for one in tried if one.result.weight > 0]
    return max(useful, key=lambda one: one.solved).result if useful else tried[0].result


def marks_of(result: FormResult) -> SkillResult:
    """Return a form's marks as those of routing."""
    return SkillResult(
        skill=Skill.ROUTING,
        questions=result.questions,
        accuracy=result.accuracy,
        low=result.low,
        high=result.high,
        baseline=result.baseline,
        valid_rate=result.valid_rate,
        position_bias=result.position_bias,
        weight=result.weight,
    )
