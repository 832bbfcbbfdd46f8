"""Tokens of texts that the server did not count, estimated from those that it did.

Contexts of the product come with their length in tokens of the server's tokenizer. For methods that are computed
here, a text's words and marks are counted and multiplied by what the server's own contexts of the same pool cost a
piece.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Final

from clag_eval.data import Memory

__all__ = ["TokenEstimate", "fill", "line_of", "spoken_date"]

_PIECE: Final = re.compile(r"\w+|[^\w\s]", re.UNICODE)
_SEPARATOR: Final = 1


class TokenEstimate:
    """Estimates lengths in tokens; learns from every context that it is shown."""

    def __init__(self, tokens_per_piece: float = 1.3) -> None:
        self._default = tokens_per_piece
        self._tokens = 0
        self._pieces = 0

    def learn(self, text: str, tokens: int) -> None:
        """Take note of a text whose length is known."""
        self._tokens += tokens
        self._pieces += _pieces(text)

    @property
    def tokens_per_piece(self) -> float:
        """What a piece costs."""
        return self._tokens / self._pieces if self._pieces else self._default

    def count(self, text: str) -> float:
        """Return about how many tokens a text has."""
        return _pieces(text) * self.tokens_per_piece


def spoken_date(memory: Memory) -> str:
    """Return the date as the server writes it, "7 May 2023"; empty where none is known."""
    return f"{memory.time.day} {memory.time:%B %Y}" if memory.time is not None else ""


def line_of(memory: Memory) -> str:
    """Return a memory as a baseline's prompt would show it: `[date] speaker: text`."""
    date = spoken_date(memory)
    return f"{f'[{date}] ' if date else ''}{f'{memory.speaker}: ' if memory.speaker else ''}{memory.text}"


def fill(memories: Sequence[Memory], budget: int, estimate: TokenEstimate) -> tuple[tuple[str, ...], int]:
    """Take memories in their order; one that does not fit is passed over, as the server does.

    Returns:
        The ids that fit, and about how many tokens they have.
    """
    taken: list[str] = []
    used = 0.0
    smallest = 3 * estimate.tokens_per_piece
    for memory in memories:
        if used + smallest > budget:
            break
        cost = estimate.count(line_of(memory)) + _SEPARATOR
        if used + cost <= budget:
            taken.append(memory.id)
            used += cost
    return tuple(taken), round(used)


@functools.lru_cache(maxsize=65_536)
def _pieces(text: str) -> int:
    """Count words and marks; the same lines are asked about for every question."""
    return len(_PIECE.findall(text))
