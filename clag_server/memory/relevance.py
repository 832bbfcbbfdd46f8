"""Whether what was found bears on the question at all: below a measured threshold an answer is refused.

Two signals tell a question that the memories speak of from one that they do not: how near the best memory is in
meaning, and how much of what the question asks about occurs in the memories found, each word weighted by how rare
it is. `bench relevance` measures both and the threshold on public data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from clag_server.memory.lexical import tokens
from clag_server.types.retrieval import MemoryHit

__all__ = ["Evidence", "evidence_of", "relevance"]

_LOOKED_AT: Final = 10
"""Hits whose words count; more hold any word by chance."""

_BOTH: Final = (14.9, 5.5, -11.2)
_BY_MEANING: Final = (18.7, 0.0, -9.6)
_BY_WORDS: Final = (0.0, 7.9, -4.9)
"""Weights of cosine, coverage and 1: a logistic regression over questions of LoCoMo, HotpotQA and BioASQ asked of
their own pool and of another one, with the bundled embedder (docs/retrieval.md has what it is worth). Cosines of
another embedder lie elsewhere."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What speaks for an answer.

    Attributes:
        cosine: Of the question and the nearest hit; None where nothing was searched by meaning.
        coverage: Share of the question's words that the best hits hold, weighted by how rare each is, 0 to 1; None
            where the question has no words that tell.
    """

    cosine: float | None
    coverage: float | None


def evidence_of(
    question: str, hits: Sequence[MemoryHit], frequency: Mapping[str, int], documents: int, *, dense: bool
) -> Evidence:
    """Gather what speaks for an answer.

    Args:
        question: The question.
        hits: What was found, best first, at least one.
        frequency: How many memories hold each token of the question; absent ones none.
        documents: How many memories there are.
        dense: Whether they were searched by meaning.
    """
    asked = frozenset(tokens(question))
    best = hits[:_LOOKED_AT]
    told = {token for hit in best for token in tokens(f"{hit.memory.speaker} {hit.memory.text}")}
    weights = {token: _rarity(frequency.get(token, 0), documents) for token in asked}
    total = sum(weights.values())
    return Evidence(
        cosine=max(hit.parts.dense for hit in hits) if dense else None,
        coverage=sum(weight for token, weight in weights.items() if token in told) / total if total else None,
    )


def relevance(evidence: Evidence) -> float:
    """Return how likely it is that the memories found bear on the question, 0 to 1."""
    match evidence.cosine, evidence.coverage:
        case None, None:
            return 0.0
        case _, None:
            weights = _BY_MEANING
        case None, _:
            weights = _BY_WORDS
        case _:
            weights = _BOTH
    near, told, offset = weights
    return 1 / (1 + math.exp(-(near * (evidence.cosine or 0.0) + told * (evidence.coverage or 0.0) + offset)))


def _rarity(holding: int, documents: int) -> float:
    """Return BM25's weight of a token (Robertson and Zaragoza 2009, with the 1 that keeps it positive)."""
    return math.log(1 + (documents - holding + 0.5) / (holding + 0.5))
