"""Baselines that are computed here, over the embeddings of the product's own embedder.

They are given the same text as the product indexes (`[date] speaker: text`), without which dense search on LoCoMo
finds a quarter less, and BM25 with the parameters that suit short texts better than the usual ones (k1 0.9, b 0.4).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clag_eval.data import DataError, Memory, Question
from clag_eval.methods.base import Budgets, Found, SearchSpace, found_by_score
from clag_eval.stored import StoredPool
from clag_eval.table import cosines
from clag_eval.tokens import fill, line_of

__all__ = ["Bm25", "Dense", "Full", "Hybrid", "Lexicon", "Window", "min_max"]

_K1: Final = 0.9
_B: Final = 0.4
_WORD: Final = re.compile(r"[^\W_]+(?:['’][^\W_]+)*", re.UNICODE)


class Dense:
    """`rag`: all memories by cosine."""

    name = "rag"

    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets

    async def prepare(self, stored: StoredPool) -> None:
        """Nothing to do."""

    async def find(self, stored: StoredPool, question: Question) -> Found:
        """Rank by cosine."""
        return found_by_score(stored, await cosines(stored, question.text), self._budgets)


class Bm25:
    """`bm25`: all memories by their words; none that shares no word with the question."""

    name = "bm25"

    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets
        self._lexicon = Lexicon(())

    async def prepare(self, stored: StoredPool) -> None:
        """Index the words of the pool."""
        self._lexicon = Lexicon(stored.pool.memories)

    async def find(self, stored: StoredPool, question: Question) -> Found:
        """Rank by BM25."""
        scores = self._lexicon.scores(question.text)
        return found_by_score(stored, np.where(scores > 0, scores, -np.inf), self._budgets)


class Hybrid:
    """`hybrid`: all memories by half cosine and half BM25, each scaled to 0..1 over the pool."""

    name = "hybrid"

    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets
        self._lexicon = Lexicon(())

    async def prepare(self, stored: StoredPool) -> None:
        """Index the words of the pool."""
        self._lexicon = Lexicon(stored.pool.memories)

    async def find(self, stored: StoredPool, question: Question) -> Found:
        """Rank by the convex sum; where no word matches, by cosine."""
        dense = await cosines(stored, question.text)
        both = 0.5 * min_max(dense) + 0.5 * min_max(self._lexicon.scores(question.text))
        return found_by_score(stored, both, self._budgets)


class Window:
    """`window`: the latest memories that fit, whatever is asked."""

    name = "window"

    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets

    async def prepare(self, stored: StoredPool) -> None:
        """Nothing to do."""

    async def find(self, stored: StoredPool, question: Question) -> Found:  # noqa: ARG002  # that is the method
        """Take the latest."""
        latest = stored.pool.memories[::-1]
        return _taken(stored, latest, self._budgets.all, space_of=max(self._budgets.all))


class Full:
    """`full`: everything from the beginning, as far as the language model's window reaches."""

    name = "full"

    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets

    async def prepare(self, stored: StoredPool) -> None:
        """Nothing to do."""

    async def find(self, stored: StoredPool, question: Question) -> Found:  # noqa: ARG002  # that is the method
        """Take all that fit."""
        budgets = tuple(sorted({*self._budgets.all, self._budgets.window}))
        return _taken(stored, stored.pool.memories, budgets, space_of=self._budgets.window)


class Lexicon:
    """BM25 over a pool: lower-case words, English stems, no stop words.

    Args:
        memories: The pool.

    Raises:
        DataError: The library is not installed.
    """

    def __init__(self, memories: Sequence[Memory]) -> None:
        try:
            import bm25s
            import Stemmer
            from bm25s.stopwords import STOPWORDS_EN_PLUS
        except ImportError:
            raise DataError("bm25 and hybrid need more packages: pip install 'clag-server[eval]'") from None
        self._stem: Any = Stemmer.Stemmer("english").stemWord
        self._stop = frozenset(STOPWORDS_EN_PLUS)
        self._index: Any = bm25s.BM25(method="lucene", k1=_K1, b=_B)
        tokens = [self._tokens(line_of(memory)) for memory in memories]
        self._vocabulary = {token for line in tokens for token in line}
        self._count = len(memories)
        if self._vocabulary:
            self._index.index(tokens, show_progress=False)

    def scores(self, question: str) -> NDArray[np.float64]:
        """Return the BM25 score of each memory, (n,); zero where no word matches."""
        known = [token for token in self._tokens(question) if token in self._vocabulary]
        if not known:
            return np.zeros(self._count, dtype=np.float64)
        return np.asarray(self._index.get_scores(known), dtype=np.float64)

    def _tokens(self, text: str) -> list[str]:
        words = [word.replace("’", "'").removesuffix("'s") for word in _WORD.findall(text.casefold())]
        return [self._stem(word) for word in words if word and word not in self._stop]


def min_max(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale to 0..1; zeros where all values are the same."""
    low, high = float(values.min()), float(values.max())
    return (values - low) / (high - low) if high > low else np.zeros_like(values)


def _taken(stored: StoredPool, order: Sequence[Memory], budgets: Sequence[int], *, space_of: int) -> Found:
    filled = {budget: fill(order, budget, stored.estimate) for budget in budgets}
    share = len(filled[space_of][0]) / len(order)
    return Found(
        ranked=tuple(memory.id for memory in order[:50]),
        space=SearchSpace(picked=share, clusters=share),
        contexts={budget: ids for budget, (ids, _) in filled.items()},
        tokens={budget: tokens for budget, (_, tokens) in filled.items()},
    )
