"""The forms in which a language model is asked for a choice: one number an option, whatever the form.

The channel score (design, section 7) needs prompt log-probabilities and no skill at multiple choice. Small models
have none: of letters they take the same one every time. A large model may be better at naming the right group than
at being surprised by the wrong ones, and a remote server that gives no prompt log-probabilities can be asked in no
other way. Which form a model is asked in is what the competence probe found (`memory.probing.forms`).

Letters are given in an order shuffled by the question itself: the same question gives the same order in every try,
and a model that prefers a position names every cluster equally often.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Sequence
from typing import Final

from clag_server.memory import prompts
from clag_server.models.api import (
    ChoiceOption,
    ModelRequestRefusedError,
    Priority,
    SlmEngine,
    UnusableCause,
    UnusableOutputError,
    WrongShapeError,
)
from clag_server.types.competence import ChoiceForm

__all__ = ["LABELS", "score_options", "shown_order"]

LABELS: Final = "ABCDEFGHIJKLMNO"
"""As many as there may be candidates."""


async def score_options(
    form: ChoiceForm,
    slm: SlmEngine,
    text: str,
    options: Sequence[ChoiceOption],
    *,
    priority: Priority,
    deadline_s: float | None = None,
) -> tuple[float, ...]:
    """Ask for a choice; only the standing of the scores among each other says something.

    Args:
        form: How it is asked.
        slm: The model.
        text: The memory or the episode, as `prompts.routing_note` writes it.
        options: The candidates, at most as many as `LABELS`.
        priority: Who waits.
        deadline_s: Longest wait for one answer in seconds; None waits.

    Returns:
        One finite number an option, higher for what the model would choose: nats of the text (CHANNEL) or of the
        letter (LETTER), 1 for the one that was named and 0 for the others (JSON).

    Raises:
        ModelUnavailableError, ModelTimeoutError: The model does not answer now.
        ModelRequestRefusedError: The text is refused, or the options do not fit what the engine reads at once.
        WrongShapeError, UnusableOutputError: The answer is none.
    """
    match form:
        case ChoiceForm.CHANNEL:
            scores = (await slm.choose(text, options, priority=priority, deadline_s=deadline_s)).scores
        case ChoiceForm.LETTER:
            scores = await _by_letter(slm, text, options, priority=priority, deadline_s=deadline_s)
        case ChoiceForm.JSON:
            scores = await _by_name(slm, text, options, priority=priority, deadline_s=deadline_s)
    if len(scores) != len(options) or not all(map(math.isfinite, scores)):
        raise WrongShapeError(f"{len(options)} finite scores", str(len(scores)))
    return scores


def shown_order(text: str, options: Sequence[ChoiceOption]) -> list[int]:
    """Return the order in which options are shown with letters: shuffled, and always the same for one question."""
    told = "\0".join((text, *(option.head for option in options)))
    order = list(range(len(options)))
    seed = hashlib.sha256(told.encode("utf-8", "replace")).digest()
    random.Random(seed).shuffle(order)  # noqa: S311 - a fair order, no secret
    return order


async def _by_letter(
    slm: SlmEngine, text: str, options: Sequence[ChoiceOption], *, priority: Priority, deadline_s: float | None
) -> tuple[float, ...]:
    """Score each letter as the word that follows the question; nothing is generated."""
    order = shown_order(text, options)
    prompt = _prompt(text, options, order)
    # All letters follow one head: it is read with the first of them and kept for the others.
    question = ChoiceOption(f"letters/{hashlib.sha256(prompt.encode('utf-8', 'replace')).hexdigest()[:32]}", prompt)
    scores = [0.0] * len(options)
    for label, option in zip(LABELS, order, strict=False):
        answer = await slm.choose(label, [question], priority=priority, deadline_s=deadline_s)
        if answer.clipped:
            raise ModelRequestRefusedError("the options are longer than what is read of a question")
        if len(answer.scores) != 1:
            raise WrongShapeError("1 score a letter", str(len(answer.scores)))
        scores[option] = answer.scores[0]
    return tuple(scores)


async def _by_name(
    slm: SlmEngine, text: str, options: Sequence[ChoiceOption], *, priority: Priority, deadline_s: float | None
) -> tuple[float, ...]:
    """Have the letter written as an object that can hold no other."""
    order = shown_order(text, options)
    labels = LABELS[: len(options)]
    answer = await slm.generate(
        _prompt(text, options, order),
        schema=prompts.choice_schema(labels),
        max_tokens=prompts.CHOICE_TOKENS,
        priority=priority,
        deadline_s=deadline_s,
    )
    named = answer.value.get("group") if isinstance(answer.value, dict) else None
    if not isinstance(named, str) or len(named) != 1 or named not in labels:
        raise UnusableOutputError(UnusableCause.OUT_OF_BOUNDS, "no letter of an option", answer.text)
    chosen = order[labels.index(named)]
    return tuple(float(option == chosen) for option in range(len(options)))


def _prompt(text: str, options: Sequence[ChoiceOption], order: Sequence[int]) -> str:
    if not 0 < len(options) <= len(LABELS):
        raise ModelRequestRefusedError(f"a choice of {len(options)}; there are {len(LABELS)} letters")
    if not text.strip():
        raise ModelRequestRefusedError("the text to choose for is empty")
    return prompts.choice_prompt(text, {LABELS[i]: options[option].head for i, option in enumerate(order)})
