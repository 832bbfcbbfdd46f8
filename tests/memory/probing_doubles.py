"""Language models that a probe must see through, and one that it must not hold back."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

from clag_server.memory import prompts
from clag_server.memory.lexical import tokens
from clag_server.memory.probing.examination import Examination
from clag_server.memory.probing.questions import AnnotationQuestion, EvolutionQuestion, bundled
from clag_server.models.api import ChoiceOption
from clag_server.models.scripted import Script, ScriptedEmbedder, ScriptedSlm
from clag_server.types.competence import Skill, SkillResult

Chooser = Callable[[str, Sequence[ChoiceOption]], Sequence[float]]


async def silent(_skill: str, _done: int, _total: int) -> None:
    """Hear nothing of the progress."""


def examination(script: Script) -> Examination:
    """An examination of the scripted model, with the scripted embedder's vectors to compare with."""
    return Examination(ScriptedSlm(lambda: script), ScriptedEmbedder(Script), link_cosine=0.55)


async def marks_of(script: Script) -> dict[Skill, SkillResult]:
    """What a scripted model gets in every skill."""
    return {one.skill: one for one in await examination(script).run(silent)}


def all_knowing(text: str, options: Sequence[ChoiceOption]) -> Sequence[float]:
    """Scores of a model that knows every right answer, and no letters."""
    if len(text) == 1:
        return [-1.0] * len(options)
    right = _RIGHT[text]
    return [-10.0 if f"Topic: {right}" in option.head.splitlines() else -90.0 for option in options]


def guessing(seed: int) -> Chooser:
    """A model whose scores are noise."""
    noise = random.Random(seed)  # noqa: S311

    def choose(_text: str, options: Sequence[ChoiceOption]) -> Sequence[float]:
        return [noise.gauss(-50.0, 20.0) for _ in options]

    return choose


def well_written(prompt: str) -> str:
    """Answers of a model that annotates and links well, and names no group by its letter."""
    if prompt.endswith(prompts.CHOICE_END):
        return "no"
    for annotated in bundled().annotation:
        if prompt == prompts.evolution_prompt(annotated.text, annotated.speaker):
            return json.dumps(_good_annotation(annotated), ensure_ascii=False)
    for linked in bundled().evolution:
        if prompt == prompts.evolution_prompt(linked.text, "", [one.text for one in linked.neighbours]):
            return json.dumps(_good_links(linked), ensure_ascii=False)
    raise AssertionError("a prompt of no question")


def _good_annotation(question: AnnotationQuestion) -> dict[str, object]:
    words = [word for group in question.keywords for word in group if word.casefold() in question.text.casefold()]
    about = next(word for word in question.about if len(word) > 1)
    return {"context": f"{about}: {words[0]}", "keywords": [w for w in words if len(w) > 1][:4], "tags": [about]}


def _good_links(question: EvolutionQuestion) -> dict[str, object]:
    called = {kind: word for word, kind in prompts.LINK_WORDS.items()}
    links = [
        {"n": i, "kind": called[min(one.kinds)], "why": one.text[:20]}
        for i, one in enumerate(question.neighbours, 1)
        if one.kinds
    ]
    word = next(word for word in question.text.split() if len(word) > 1 and tokens(word))
    word = word if len(word) <= 18 else word[:6]
    own = {"context": question.text[:60], "keywords": [word], "tags": [word]}
    return {**own, "links": links, "updates": []}


_RIGHT = {
    question.text: question.profiles[question.right].title
    for question in (*bundled().routing, *bundled().selection)
}
