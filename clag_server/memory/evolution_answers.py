"""The one call a memory that asks the SLM for annotation and evolution together: question, answer, and its checks.

The answer is believed piece by piece. A link to a number that was not shown, of no known kind, or with words of the
prompt's examples is dropped and counted; an annotation that says nothing of the memory makes the deterministic one
stand in, and the links may still be good. No piece may hold words of a memory that it is not about.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field

from clag_server.memory import prompts
from clag_server.memory.annotate import KEYWORDS, TAGS, Annotation, fallback_cause
from clag_server.memory.lexical import tokens
from clag_server.memory.terms import term_candidates, written
from clag_server.memory.wording import borrows, clean, clean_words, leaked, loops, parrots, same_language
from clag_server.models.api import ModelError, Priority, SlmEngine
from clag_server.types.memory import AnnotationSource, FallbackCause, LinkKind

_MAX_WORD_CHARACTERS = 48
_MAX_CONTEXT_CHARACTERS = 240
_MAX_REASON_CHARACTERS = 120

_WORDS_OFFERED = 24
"""Words of a memory that keywords are taken from; a grammar of so many compiles in some 8 ms."""

_REASONS = {
    LinkKind.CAUSAL: "one led to the other",
    LinkKind.TEMPORAL: "one course of events",
    LinkKind.SAME_SUBJECT: "about the same subject",
    LinkKind.CONTRADICTS: "the two cannot both hold",
    LinkKind.REFINES: "says it more precisely",
    LinkKind.SIMILAR: "alike",
}
"""What is said where a model gives no usable reason."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the SLM was asked about: the new memory, and texts of neighbours as shown, nearest first."""

    text: str
    speaker: str = ""
    neighbours: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProposedLink:
    """A link that the SLM proposes: the index of the neighbour (from 0), the kind, the reason."""

    neighbour: int
    kind: LinkKind
    reason: str


@dataclass(frozen=True, slots=True)
class ProposedUpdate:
    """New context and tags that the SLM proposes for a neighbour (by its index, from 0); no tags: they stay."""

    neighbour: int
    context: str
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EvolutionAnswer:
    """What of an answer passed the checks. `dropped` pieces of it did not."""

    annotation: Annotation | None
    links: tuple[ProposedLink, ...] = ()
    updates: tuple[ProposedUpdate, ...] = ()
    dropped: int = 0
    fallback: FallbackCause = FallbackCause.NONE
    """Why there is no answer at all; an answer without a usable annotation is INVALID_OUTPUT."""


@dataclass(slots=True)
class _Reading:
    """One answer being read."""

    asked: Asked
    known: frozenset[str] = frozenset()
    dropped: int = 0
    seen: set[int] = field(default_factory=set)

    def own(self, neighbour: int | None = None) -> frozenset[str]:
        """Return the index tokens of the memory, and of a neighbour (by its index) with it."""
        about = [prompts.spoken(self.asked.text, self.asked.speaker)]
        if neighbour is not None:
            about.append(self.asked.neighbours[neighbour])
        return frozenset(token for one in about for token in tokens(one))


async def ask_evolution(
    slm: SlmEngine, asked: Asked, *, priority: Priority = Priority.ORGANIZE, deadline_s: float | None = None
) -> EvolutionAnswer:
    """Ask the SLM once; a failed call is an answer with nothing in it but the cause."""
    shown = len(asked.neighbours)
    words = written(list(term_candidates(asked.text)), [asked.text], limit=_WORDS_OFFERED)
    try:
        generation = await slm.generate(
            prompts.evolution_prompt(asked.text, asked.speaker, asked.neighbours),
            schema=prompts.answer_schema(shown, words),
            max_tokens=prompts.answer_tokens(shown),
            priority=priority,
            deadline_s=deadline_s,
        )
    except ModelError as error:
        return EvolutionAnswer(None, fallback=fallback_cause(error))
    return parse_answer(generation.text, asked)


def parse_answer(text: str, asked: Asked) -> EvolutionAnswer:
    """Return what is usable of a model's answer, which may be surrounded by prose (cases M1, M2, M4)."""
    nothing = EvolutionAnswer(None, fallback=FallbackCause.INVALID_OUTPUT)
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or end < start:
        return nothing
    try:
        raw = json.loads(text[start : end + 1])
    except (ValueError, RecursionError):
        return nothing
    if not isinstance(raw, dict):
        return nothing
    about = (asked.speaker, asked.text, *asked.neighbours)
    reading = _Reading(asked, frozenset(token for one in about for token in tokens(one)))
    annotation = _annotation(raw, reading)
    links = _links(raw.get("links"), reading)
    updates = _updates(raw.get("updates"), reading)
    fallback = FallbackCause.NONE if annotation is not None else FallbackCause.INVALID_OUTPUT
    return EvolutionAnswer(annotation, links, updates, reading.dropped, fallback)


def _annotation(raw: dict[str, object], reading: _Reading) -> Annotation | None:
    """Return the annotation; None without a usable context and at least one word of the memory's own."""
    own = reading.own()
    context = _sentence(raw.get("context"), reading, (reading.asked.text,), own)
    words = clean_words(raw.get("keywords"), _MAX_WORD_CHARACTERS)
    keywords = tuple(word for word in words if set(tokens(word)) & own and not borrows(word, own, reading.known))
    if not context or not keywords:
        return None
    return Annotation(context, keywords[:KEYWORDS], _tags(raw.get("tags"), reading, own), AnnotationSource.SLM)


def _links(raw: object, reading: _Reading) -> tuple[ProposedLink, ...]:
    found = []
    for one in raw if isinstance(raw, list) else ():
        neighbour = _neighbour(one, reading)
        kind = prompts.LINK_WORDS.get(str(one.get("kind"))) if isinstance(one, dict) else None
        why = one.get("why") if isinstance(one, dict) else None
        reason = clean(why, _MAX_REASON_CHARACTERS) if isinstance(why, str) else ""
        if neighbour is None or kind is None or neighbour in reading.seen or leaked(reason, reading.known):
            reading.dropped += 1
            continue
        reading.seen.add(neighbour)
        usable = any(c.isalpha() for c in reason) and not loops(reason)
        usable = usable and not borrows(reason, reading.own(neighbour), reading.known)
        found.append(ProposedLink(neighbour, kind, reason if usable else _REASONS[kind]))
    return tuple(found)


def _updates(raw: object, reading: _Reading) -> tuple[ProposedUpdate, ...]:
    found: dict[int, ProposedUpdate] = {}
    for one in raw if isinstance(raw, list) else ():
        neighbour = _neighbour(one, reading)
        if neighbour is None or neighbour in found:
            reading.dropped += 1
            continue
        about, own = (reading.asked.text, reading.asked.neighbours[neighbour]), reading.own(neighbour)
        context = _sentence(one.get("context"), reading, about, own)
        if not context:
            reading.dropped += 1
            continue
        found[neighbour] = ProposedUpdate(neighbour, context, _tags(one.get("tags"), reading, own))
    return tuple(found.values())


def _neighbour(raw: object, reading: _Reading) -> int | None:
    """Return the index that an object names by its number, None for one that was not shown."""
    number = raw.get("n") if isinstance(raw, dict) else None
    if not isinstance(number, int) or isinstance(number, bool):
        return None
    return number - 1 if 1 <= number <= len(reading.asked.neighbours) else None


def _sentence(raw: object, reading: _Reading, about: tuple[str, ...], own: Collection[str]) -> str:
    """Return a context that may be stored, "" for none."""
    text = clean(raw, _MAX_CONTEXT_CHARACTERS) if isinstance(raw, str) else ""
    if not any(c.isalpha() for c in text) or loops(text):
        return ""
    if leaked(text, reading.known) or parrots(text, reading.known) or borrows(text, own, reading.known):
        return ""
    return text if same_language(text, about) else ""


def _tags(raw: object, reading: _Reading, own: Collection[str]) -> tuple[str, ...]:
    words, known = clean_words(raw, _MAX_WORD_CHARACTERS), reading.known
    kept = tuple(
        word for word in words if not (parrots(word, known) or leaked(word, known) or borrows(word, own, known))
    )
    reading.dropped += len(words) - len(kept)
    return kept[:TAGS]
