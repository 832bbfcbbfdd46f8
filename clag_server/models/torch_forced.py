"""Text in which a grammar leaves no choice: it is taken without asking the model. Runs in the worker only.

About a third of an object is its own form: quotes, field names, brackets. The model reads such text in one pass
instead of writing it token by token.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clag_server.models.torch_grammar import Constraint
    from clag_server.models.torch_slm import CausalModel

__all__ = ["ForcedText", "bits_of"]

_LEAST = 2
"""Tokens that are worth it: what a row reads before its last token attends for itself, which costs about what a
token costs that is written among others."""

_MOST = 16
"""Tokens at a time: a pass that reads them is not much longer than others, whoever waits for its end."""


class ForcedText:
    """Finds the tokens of forced text.

    Args:
        model: The language model.
        texts: The text of each token.
    """

    def __init__(self, model: CausalModel, texts: Sequence[str]) -> None:
        self._tokenizer = model.tokenizer
        self._stop_ids = model.stop_ids
        self._texts = texts
        self._beginners = bits_of((i for i, text in enumerate(texts) if text[:1].isalnum()), len(texts))
        self._encoded = lru_cache(maxsize=4096)(self._encode)

    def take(self, constraint: Constraint, out: Sequence[int], room: int) -> list[int]:
        """Return the tokens that must follow and move the constraint on by them; empty where they are not worth it.

        Args:
            constraint: Where the text stands.
            out: Its tokens so far.
            room: Tokens that it may still have.
        """
        text = constraint.forced()
        ids = self._encoded(text) if text else ()
        before = self._tokenizer.decode(out) if ids else ""
        # Some tokenizers write a text's first token differently inside another text.
        if not ids or self._tokenizer.decode([*out, *ids]) != before + text:
            return []
        taken: list[int] = []
        for token in ids[: min(room, _MOST)]:
            if token in self._stop_ids or not constraint.accept(token):
                break
            taken.append(token)
        if len(taken) == len(ids) and not self._stands_alone(taken[-1], constraint):
            constraint.go_back(1)
            taken.pop()
        if len(taken) < _LEAST and not constraint.ended:
            constraint.go_back(len(taken))
            taken.clear()
        return taken

    def _stands_alone(self, token: int, constraint: Constraint) -> bool:
        """Return whether the model would hardly have written the last forced token and what follows as one.

        So it is at the end, and with a mark before a word. A quote that closes a text may be one token with the
        comma after it, and the letters of a word with others.
        """
        if constraint.ended:
            return True
        last = self._texts[token][-1:]
        mark = bool(last) and last.isascii() and not last.isalnum() and not last.isspace()
        return mark and constraint.allows_any(self._beginners)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode([text])[0])


def bits_of(tokens: Iterable[int], vocabulary_size: int) -> torch.Tensor:
    """Return a set of tokens as a bit mask in the grammar library's layout, shape (1, words of 32 bits)."""
    flags = torch.zeros(-(-vocabulary_size // 32), 32, dtype=torch.int64)
    flags.view(-1)[torch.tensor(sorted(tokens), dtype=torch.int64)] = 1
    words = (flags << torch.arange(32)).sum(1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)[None]
