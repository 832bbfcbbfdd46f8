"""One examination of a language model: every question asked once, the answers kept, the marks at the end.

It can be interrupted (the model went away, the call was cancelled) and run again: what was answered is not asked
again.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

from clag_server.memory import prompts
from clag_server.memory.evolution_answers import EvolutionAnswer
from clag_server.memory.probing.asking import ChoiceAnswer, ask_annotation, ask_choice, ask_links
from clag_server.memory.probing.forms import (
    FormAnswer,
    Trial,
    Tried,
    ask_form,
    best_of,
    by_channel,
    marks_of,
    sample_first,
)
from clag_server.memory.probing.judging import judge_annotation, judge_links, leaks
from clag_server.memory.probing.marking import Tally, marks
from clag_server.memory.probing.questions import (
    AnnotationQuestion,
    ChoiceQuestion,
    EvolutionQuestion,
    Questions,
    bundled,
    questions_hash,
)
from clag_server.memory.probing.standing_in import annotations_by_terms, cosines_of, links_by_cosine
from clag_server.memory.probing.statistics import position_bias
from clag_server.memory.probing.weights import Case, weigh_choices
from clag_server.models.api import Embedder, SlmEngine
from clag_server.types.competence import ChoiceForm, FormResult, Skill, SkillResult

__all__ = ["Examination", "Told", "version"]

_SCORING: Final = 3
"""Counts up when answers are judged or weighed in another way."""

_CHOICES_AT_ONCE: Final = 5
"""A world's questions: they share their heads, which are read once."""

_TEXTS_AT_ONCE: Final = 8
"""Enough to fill a batch; after each it is seen whether the model can still earn anything."""

Told = Callable[[str, int, int], Awaitable[None]]
"""Hears what is asked for, how many of its questions are answered, and how many it has."""


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Q = TypeVar("_Q", bound=_Named)
_A = TypeVar("_A")


def version() -> str:
    """Return what an outcome belongs to besides the model: questions, prompts and marking."""
    told = f"{questions_hash()} prompts {prompts.VERSION} scoring {_SCORING}"
    return hashlib.sha256(told.encode()).hexdigest()[:16]


class Examination:
    """Examines one language model.

    Args:
        slm: The model.
        embedder: Gives the vector order to compare with.
        link_cosine: Least cosine of a link that is made without the SLM.
        questions: What is asked; the bundled ones by default.
    """

    def __init__(
        self, slm: SlmEngine, embedder: Embedder, *, link_cosine: float, questions: Questions | None = None
    ) -> None:
        self._slm = slm
        self._embedder = embedder
        self._link_cosine = link_cosine
        self._questions = questions or bundled()
        self._choices: dict[str, ChoiceAnswer] = {}
        self._named: dict[ChoiceForm, dict[str, FormAnswer]] = {ChoiceForm.LETTER: {}, ChoiceForm.JSON: {}}
        self._written: dict[str, EvolutionAnswer] = {}
        self.forms: tuple[FormResult, ...] = ()
        """The forms of votes that were tried."""
        self.form = ChoiceForm.CHANNEL
        """The best of them; the marks of routing are its."""
        self._decided = 0
        self._busy_s = 0.0

    @property
    def decisions_per_second(self) -> float:
        """Answers in each second that the model was asked."""
        return self._decided / self._busy_s if self._busy_s > 0 else 0.0

    async def run(self, told: Told) -> tuple[SkillResult, ...]:
        """Ask what was not answered yet, and return the marks of every skill.

        Raises:
            ModelUnavailableError, ModelTimeoutError: A model is away; run again later.
        """
        if not self._choices:
            # The first answer waits for the model to load, which is no part of its speed.
            first = self._questions.routing[0]
            self._choices[first.name] = await ask_choice(self._slm, first)
        return (
            await self._routing(told),
            (await self._choice(Skill.SELECTION, self._questions.selection, told))[0],
            await self._annotation(told),
            await self._evolution(told),
        )

    async def _routing(self, told: Told) -> SkillResult:
        """Measure votes in every form; the marks are those of the best."""
        channel = by_channel(*await self._choice(Skill.ROUTING, self._questions.routing, told))
        tried = [channel, *[await self._form(form, told) for form in self._named]]
        best = best_of(tried)
        self.forms, self.form = tuple(one.result for one in tried), best.form
        return marks_of(best)

    async def _form(self, form: ChoiceForm, told: Told) -> Tried:
        questions = sample_first(self._questions.routing)
        trial = Trial(form, questions, await cosines_of(self._embedder, questions))
        await self._each(
            f"routing by {form.name.lower()}",
            questions,
            self._named[form],
            lambda question: ask_form(self._slm, question, form),
            told,
            at_once=_CHOICES_AT_ONCE,
            seen=trial.seen,
        )
        return trial.tried()

    async def _choice(
        self, skill: Skill, questions: Sequence[ChoiceQuestion], told: Told
    ) -> tuple[SkillResult, float]:
        """Measure channel scores; returns the marks, and the share that is solved together with the vectors."""
        answers = await self._each(
            skill.name.lower(),
            questions,
            self._choices,
            lambda question: ask_choice(self._slm, question),
            told,
            at_once=_CHOICES_AT_ONCE,
        )
        cosines = await cosines_of(self._embedder, questions)
        given = [
            (chosen, placed)
            for answer in answers
            for chosen, placed in zip(answer.chosen, answer.placed, strict=True)
            if chosen is not None
        ]
        bias = position_bias(
            [chosen for chosen, _ in given], [placed for _, placed in given], len(questions[0].profiles)
        )
        asked = sum(len(answer.placed) for answer in answers)
        valid_rate = len(given) / asked
        cases = [
            Case(question.world, near, answer.scores, question.right)
            for question, near, answer in zip(questions, cosines, answers, strict=True)
        ]
        weighed = weigh_choices(cases, valid_rate=valid_rate, bias=bias)
        earned = marks(
            skill,
            questions=len(questions),
            accuracy=sum(answer.right for answer in answers) / asked,
            baseline=sum(case.solved(0.0) for case in cases) / len(cases),
            valid_rate=valid_rate,
            bias=bias,
            weight=weighed.weight,
        )
        return earned, weighed.accuracy

    async def _annotation(self, told: Told) -> SkillResult:
        questions = self._questions.annotation
        tally = Tally(len(questions), annotations_by_terms(questions) / len(questions))

        def seen(question: AnnotationQuestion, answer: EvolutionAnswer) -> bool:
            judged = judge_annotation(question, answer.annotation) if answer.annotation is not None else None
            return tally.add(usable=judged is not None, good=judged is not None and judged.good,
                             leaks=judged is not None and judged.leaks)  # fmt: skip

        ask = partial(ask_annotation, self._slm)
        await self._each("annotation", questions, self._written, ask, told, at_once=_TEXTS_AT_ONCE, seen=seen)
        return tally.marks(Skill.ANNOTATION, bias=0.0)

    async def _evolution(self, told: Told) -> SkillResult:
        questions = self._questions.evolution
        baseline = await links_by_cosine(self._embedder, questions, self._link_cosine) / len(questions)
        tally = Tally(len(questions), baseline)
        first: list[int] = []
        related: list[int] = []

        def seen(question: EvolutionQuestion, answer: EvolutionAnswer) -> bool:
            if answer.links:
                first.append(answer.links[0].neighbour)
                related.append(next(i for i, one in enumerate(question.neighbours) if one.kinds))
            about = (question.text, *(one.text for one in question.neighbours))
            annotation = answer.annotation
            good = judge_links(question, [(link.neighbour, link.kind) for link in answer.links])
            return tally.add(usable=annotation is not None, good=annotation is not None and good,
                             leaks=annotation is not None and leaks(annotation, about))  # fmt: skip

        ask = partial(ask_links, self._slm)
        await self._each("evolution", questions, self._written, ask, told, at_once=_TEXTS_AT_ONCE, seen=seen)
        return tally.marks(Skill.EVOLUTION, bias=position_bias(first, related, len(questions[0].neighbours)))

    async def _each(
        self,
        phase: str,
        questions: Sequence[_Q],
        answers: dict[str, _A],
        ask: Callable[[_Q], Awaitable[_A]],
        told: Told,
        *,
        at_once: int,
        seen: Callable[[_Q, _A], bool] = lambda _question, _answer: True,
    ) -> list[_A]:
        """Ask the questions that have no answer yet, and return all answers in their order.

        It ends early, after a batch, when `seen` says of an answer that nothing can be earned any more.
        """
        found = list[_A]()
        for first in range(0, len(questions), at_once):
            batch = questions[first : first + at_once]
            await told(phase, first, len(questions))
            await self._batch([question for question in batch if question.name not in answers], answers, ask)
            found += [answers[question.name] for question in batch]
            hopeful = [seen(question, answers[question.name]) for question in batch]
            if not all(hopeful):
                break
        await told(phase, len(questions), len(questions))
        return found

    async def _batch(
        self, questions: Sequence[_Q], answers: dict[str, _A], ask: Callable[[_Q], Awaitable[_A]]
    ) -> None:
        async def one(question: _Q) -> None:
            answers[question.name] = await ask(question)
            self._decided += 1

        began_s = time.monotonic()
        try:
            async with asyncio.TaskGroup() as tasks:
                for question in questions:
                    tasks.create_task(one(question))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None  # the others were cancelled or failed for the same reason
        finally:
            self._busy_s += time.monotonic() - began_s
