"""A scripted language model that knows nothing: its scores and its answers are drawn at random.

What it draws depends on the seed and on what it is asked, not on the order of the calls, so that a run can be
repeated. Its texts are made of the prompt's own words: they pass every check of shape, as a bad model's can.
"""

from __future__ import annotations

import json
import random
import re
from typing import TYPE_CHECKING

from clag_server.models.schema import Among, ListOf, Object, OneOf, Schema, Text, Whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clag_server.models.api import ChoiceOption
    from clag_server.models.schema import Json

__all__ = ["random_answer", "random_scores"]

_WORDS_OF_AN_ANSWER = 24


def random_scores(text: str, options: Sequence[ChoiceOption], *, seed: int) -> list[float]:
    """Return a log-probability in nats for each option, the same for the same text and option."""
    return [-100.0 * _drawing(f"{seed}|{text}|{option.key}").random() for option in options]


def random_answer(prompt: str, schema: Schema | None, *, seed: int) -> str:
    """Return a value of the schema as JSON, or words where there is no schema."""
    draw = _drawing(f"{seed}|{prompt}")
    words = re.findall(r"[^\W_]{2,}", prompt) or ["nothing"]
    if schema is None:
        return " ".join(draw.choices(words, k=_WORDS_OF_AN_ANSWER))
    return json.dumps(_value(schema, draw, words), ensure_ascii=False)


def _drawing(seed: str) -> random.Random:
    return random.Random(seed)  # noqa: S311 - nothing secret is drawn


def _value(schema: Schema, draw: random.Random, words: Sequence[str]) -> Json:
    match schema:
        case Text():
            return _text(schema, draw, words)
        case OneOf() | Among():
            return draw.choice(schema.values)
        case Whole():
            return draw.randint(schema.least, schema.most)
        case ListOf():
            return [_value(schema.item, draw, words) for _ in range(draw.randint(schema.least, schema.most))]
        case Object():
            return {name: _value(one, draw, words) for name, one in schema.fields}


def _text(schema: Text, draw: random.Random, words: Sequence[str]) -> str:
    length = draw.randint(schema.least, schema.most)
    text = ""
    while len(text) < length:
        text += f" {draw.choice(words)}" if text else draw.choice(words)
    # A blank at the cut would be lost wherever answers are trimmed, and with it perhaps the least length.
    return text[:length].rstrip().ljust(schema.least, "x")
