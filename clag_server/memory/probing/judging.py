"""Whether what a model wrote is good: true to the note, about the right thing, linked to the right neighbour.

The product's own checks come first: what they refuse is unusable, and what is judged here is what would be stored.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from clag_server.memory import prompts
from clag_server.memory.annotate import Annotation
from clag_server.memory.lexical import tokens
from clag_server.memory.probing.questions import AnnotationQuestion, EvolutionQuestion
from clag_server.memory.wording import leaked, loops, parrots, same_language
from clag_server.types.memory import LinkKind

__all__ = ["Judgement", "judge_annotation", "judge_links", "leaks"]

_RUN_WORDS: Final = 4
"""So many words in a row that the prompt has and the note has not were copied from the prompt."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether an answer is good, and whether words of the prompt are in it or it repeats itself."""

    good: bool
    leaks: bool


def judge_annotation(question: AnnotationQuestion, answer: Annotation, *, context: bool = True) -> Judgement:
    """Judge an annotation.

    Args:
        question: What was asked.
        answer: The annotation.
        context: Whether it must have a sentence; what is made from terms alone has none.
    """
    leak = leaks(answer, (question.speaker, question.text))
    everything = _joined([answer.context, *answer.keywords, *answer.tags])
    written = _joined(answer.keywords)
    named = sum(any(word.casefold() in written for word in group) for group in question.keywords)
    topical = any(word.casefold() in everything for word in question.about)
    obeyed = any(word.casefold() in _joined([answer.context, *answer.tags]) for word in question.forbidden)
    whole = not context or (len(answer.context) > 1 and same_language(answer.context, (question.text,)))
    enough = 2 * named >= len(question.keywords)
    return Judgement(enough and topical and whole and not obeyed and not leak, leak)


def judge_links(question: EvolutionQuestion, links: Sequence[tuple[int, LinkKind]]) -> bool:
    """Return whether exactly the related neighbours are linked, each with a kind that fits.

    Args:
        question: What was asked.
        links: Index of the neighbour and kind of each link. SIMILAR says no more than that two are about the same.
    """
    kinds: Mapping[int, LinkKind] = dict(links)
    wanted = {i: one.kinds for i, one in enumerate(question.neighbours) if one.kinds}
    if kinds.keys() != wanted.keys():
        return False
    return all(_fits(kinds[i], right) for i, right in wanted.items())


def leaks(answer: Annotation, about: Sequence[str]) -> bool:
    """Return whether an annotation has words of the prompt in it, or says the same again.

    Args:
        answer: The annotation.
        about: Texts that the model was asked about; their words are no leak.
    """
    known = {token for text in about for token in tokens(text)}
    words = (*answer.keywords, *answer.tags)
    if any(leaked(one, known) for one in (answer.context, *words)) or any(parrots(word, known) for word in words):
        return True
    own = set(_runs(_words(" ".join(about))))
    copied = any(run in _prompt_runs() and run not in own for run in _runs(_words(answer.context)))
    return copied or loops(answer.context) or _same_twice(answer.keywords) or _same_twice(answer.tags)


def _fits(kind: LinkKind, right: frozenset[LinkKind]) -> bool:
    return kind in right or (kind is LinkKind.SIMILAR and LinkKind.SAME_SUBJECT in right)


def _same_twice(words: Sequence[str]) -> bool:
    stems = [tuple(tokens(word)) or (word.casefold(),) for word in words]
    return len(stems) != len(set(stems))


@functools.cache
def _prompt_runs() -> frozenset[tuple[str, ...]]:
    """Return the runs of words that every prompt begins with."""
    return frozenset(_runs(_words(prompts.evolution_prompt(""))))


def _runs(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return (tuple(words[i : i + _RUN_WORDS]) for i in range(len(words) - _RUN_WORDS + 1))


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def _joined(parts: Iterable[str]) -> str:
    return "\n".join(parts).casefold()
