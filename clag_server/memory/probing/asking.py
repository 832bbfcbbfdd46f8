"""How the SLM is asked: as the product itself asks it, with the options in several orders.

An answer is None where it has no usable shape; a model that is away raises, and the probe waits for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from clag_server.memory import prompts
from clag_server.memory.evolution_answers import Asked, EvolutionAnswer, ask_evolution
from clag_server.memory.probing.questions import AnnotationQuestion, ChoiceQuestion, EvolutionQuestion
from clag_server.models.api import (
    ChoiceOption,
    ModelRequestRefusedError,
    ModelUnavailableError,
    Priority,
    SlmEngine,
    UnusableOutputError,
    WrongShapeError,
)
from clag_server.types.memory import FallbackCause

__all__ = ["UNUSABLE", "ChoiceAnswer", "ask_annotation", "ask_choice", "ask_links", "cluster_options", "orders"]

UNUSABLE: Final = (WrongShapeError, UnusableOutputError, ModelRequestRefusedError)
"""What a model does that answers, but not usably."""


@dataclass(frozen=True, slots=True)
class ChoiceAnswer:
    """Answers to one choice question.

    Attributes:
        scores: Of each option, mean over the orders, in nats; None where an answer was unusable.
        chosen: Position that was chosen in each order; None where the answer was unusable.
        placed: Position of the right option in each order.
    """

    scores: tuple[float, ...] | None
    chosen: tuple[int | None, ...]
    placed: tuple[int, ...]

    @property
    def right(self) -> int:
        """Orders in which the right option was chosen."""
        return sum(chosen == placed for chosen, placed in zip(self.chosen, self.placed, strict=True))


def orders(count: int, *, turned: bool) -> list[list[int]]:
    """Return the orders in which `count` options are shown: as they are, and `turned` by two and reversed too.

    Over the questions of a world, whose right answers are all candidates in turn, every position is right equally
    often in each of them.
    """
    straight = list(range(count))
    return [straight, [(i + 2) % count for i in straight][::-1]] if turned else [straight]


def cluster_options(question: ChoiceQuestion) -> list[ChoiceOption]:
    """Return the candidates of a question as the product shows clusters."""
    return [
        ChoiceOption(
            key=f"probe/{question.world}/{i}",
            head=prompts.cluster_head(one.title, one.summary, one.tags, one.examples),
        )
        for i, one in enumerate(question.profiles)
    ]


async def ask_choice(slm: SlmEngine, question: ChoiceQuestion) -> ChoiceAnswer:
    """Score the candidates of a question in every order.

    Raises:
        ModelUnavailableError, ModelTimeoutError: The SLM is away.
    """
    options = cluster_options(question)
    text = prompts.routing_note(question.text)
    shown = orders(len(options), turned=question.turned)
    sums = [0.0] * len(options)
    chosen: list[int | None] = []
    placed: list[int] = []
    for order in shown:
        placed.append(order.index(question.right))
        scores = await _scores(slm, text, [options[i] for i in order])
        if scores is None:
            chosen.append(None)
            continue
        chosen.append(max(range(len(scores)), key=lambda position: scores[position]))
        for position, i in enumerate(order):
            sums[i] += scores[position] / len(shown)
    usable = None not in chosen
    return ChoiceAnswer(tuple(sums) if usable else None, tuple(chosen), tuple(placed))


async def ask_annotation(slm: SlmEngine, question: AnnotationQuestion) -> EvolutionAnswer:
    """Have a note annotated.

    Raises:
        ModelUnavailableError: The SLM is away.
    """
    return await _written(slm, Asked(question.text, question.speaker))


async def ask_links(slm: SlmEngine, question: EvolutionQuestion) -> EvolutionAnswer:
    """Have a new memory annotated and linked to its neighbours.

    Raises:
        ModelUnavailableError: The SLM is away.
    """
    return await _written(slm, Asked(question.text, "", tuple(one.text for one in question.neighbours)))


async def _written(slm: SlmEngine, asked: Asked) -> EvolutionAnswer:
    answer = await ask_evolution(slm, asked, priority=Priority.BULK)
    if answer.fallback in (FallbackCause.UNAVAILABLE, FallbackCause.TIMEOUT):
        raise ModelUnavailableError("the language model went away while it was probed")
    return answer


async def _scores(slm: SlmEngine, text: str, options: Sequence[ChoiceOption]) -> tuple[float, ...] | None:
    try:
        scores = (await slm.choose(text, options, priority=Priority.BULK)).scores
    except UNUSABLE:
        return None
    except ModelUnavailableError as error:
        if error.retry_after_s is None:
            return None  # it will not come back: a server that gives no log-probabilities scores nothing
        raise
    return scores if len(scores) == len(options) and all(map(math.isfinite, scores)) else None
