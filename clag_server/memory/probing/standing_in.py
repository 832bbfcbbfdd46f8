"""What works without the SLM, on the same questions: vector order, terms for keywords, cosines for links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from clag_server.memory.annotate import KEYWORDS, Annotation
from clag_server.memory.probing.judging import judge_annotation, judge_links
from clag_server.memory.probing.questions import AnnotationQuestion, ChoiceQuestion, EvolutionQuestion, Profile
from clag_server.memory.terms import distinctive, term_candidates, written
from clag_server.models.api import Embedder, Priority
from clag_server.types.memory import AnnotationSource, LinkKind, Matrix

__all__ = ["annotations_by_terms", "cosines_of", "links_by_cosine"]

_TEXTS_A_CALL: Final = 32


async def cosines_of(embedder: Embedder, questions: Sequence[ChoiceQuestion]) -> list[tuple[float, ...]]:
    """Return the cosine of each question with each of its candidates.

    A candidate lies where the mean of its profile and its examples lies: vectors know what the SLM is shown.

    Raises:
        ModelUnavailableError: The embedder is away.
    """
    profiles = list(dict.fromkeys(profile for question in questions for profile in question.profiles))
    shown = [[_described(profile), *profile.examples] for profile in profiles]
    vectors = iter(await _embedded(embedder, [text for texts in shown for text in texts]))
    places = {}
    for profile, texts in zip(profiles, shown, strict=True):
        mean = np.stack([next(vectors) for _ in texts]).mean(axis=0)
        places[profile] = mean / max(float(np.linalg.norm(mean)), 1e-9)
    asked = await _embedded(embedder, [question.text for question in questions])
    return [
        tuple(float(vector @ places[profile]) for profile in question.profiles)
        for question, vector in zip(questions, asked, strict=True)
    ]


async def links_by_cosine(embedder: Embedder, questions: Sequence[EvolutionQuestion], least: float) -> int:
    """Count the questions that links by likeness alone answer right.

    Args:
        embedder: Places the notes.
        questions: The questions.
        least: Least cosine of a link.

    Raises:
        ModelUnavailableError: The embedder is away.
    """
    vectors = iter(
        await _embedded(
            embedder, [text for q in questions for text in (q.text, *(one.text for one in q.neighbours))]
        )
    )
    right = 0
    for question in questions:
        own = next(vectors)
        cosines = [float(next(vectors) @ own) for _ in question.neighbours]
        right += judge_links(
            question, [(i, LinkKind.SIMILAR) for i, cosine in enumerate(cosines) if cosine >= least]
        )
    return right


def annotations_by_terms(questions: Sequence[AnnotationQuestion]) -> int:
    """Count the questions that the most distinctive terms of the notes answer right."""
    counts = [term_candidates(question.text) for question in questions]
    frequency = Counter(term for one in counts for term in one)
    return sum(
        judge_annotation(question, _by_terms(question.text, one, frequency, len(questions)), context=False).good
        for question, one in zip(questions, counts, strict=True)
    )


def _by_terms(text: str, counts: Mapping[str, int], frequency: Mapping[str, int], documents: int) -> Annotation:
    terms = distinctive(counts, frequency, documents, limit=2 * KEYWORDS)
    return Annotation("", written(terms, [text], limit=KEYWORDS), (), AnnotationSource.STATISTICS)


def _described(profile: Profile) -> str:
    return f"{profile.title}. {profile.summary} {', '.join(profile.tags)}"


async def _embedded(embedder: Embedder, texts: Sequence[str]) -> Matrix:
    parts = [
        await embedder.embed(texts[i : i + _TEXTS_A_CALL], priority=Priority.BULK)
        for i in range(0, len(texts), _TEXTS_A_CALL)
    ]
    return np.concatenate(parts)
