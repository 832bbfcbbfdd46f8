"""Annotation of a new memory: context, keywords and tags, by the SLM or from the most distinctive terms.

Whatever the SLM answers is parsed and checked again; an unusable answer (prose, an echo of the schema, cut off,
empty, repetition) means the deterministic annotation, and is counted (cases M1, M4, M7).
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clag_server.memory import prompts
from clag_server.memory.lexical import tokens
from clag_server.memory.terms import distinctive, term_candidates, written
from clag_server.models.api import (
    ModelError,
    ModelRequestRefusedError,
    ModelTimeoutError,
    ModelUnavailableError,
    Priority,
    SlmEngine,
)
from clag_server.types.cluster import Cluster
from clag_server.types.memory import AnnotationSource, FallbackCause, Memory

_KEYWORDS = 5
_TAGS = 5
_MAX_WORD_CHARACTERS = 48
_MAX_CONTEXT_CHARACTERS = 240


@dataclass(frozen=True, slots=True)
class Annotation:
    """What evolution writes on a memory. `fallback` says why the SLM's annotation was not used, if asked for."""

    context: str
    keywords: tuple[str, ...]
    tags: tuple[str, ...]
    source: AnnotationSource
    fallback: FallbackCause = FallbackCause.NONE


def annotate_by_terms(
    memory: Memory, cluster: Cluster | None, document_frequency: Mapping[str, int], documents: int
) -> Annotation:
    """Keywords: the memory's most distinctive words. Tags: those words of the cluster that the memory has."""
    counts = term_candidates(memory.text)
    keywords = written(
        distinctive(counts, document_frequency, documents, limit=2 * _KEYWORDS), [memory.text], limit=_KEYWORDS
    )
    tags: tuple[str, ...] = ()
    if cluster is not None:
        tags = tuple(tag for tag in cluster.tags if term_candidates(tag).keys() & counts.keys())[:_TAGS]
    return Annotation("", keywords, tags, AnnotationSource.STATISTICS)


async def annotate_by_slm(slm: SlmEngine, memory: Memory, topic: str, fallback: Annotation) -> Annotation:
    """Ask the SLM; return `fallback` with the cause when its answer cannot be used."""
    prompt = prompts.annotation_prompt(memory.text, memory.speaker, topic)
    try:
        answer = await slm.generate(
            prompt,
            grammar=prompts.ANNOTATION_GRAMMAR,
            max_tokens=prompts.ANNOTATION_TOKENS,
            priority=Priority.ORGANIZE,
        )
    except ModelError as error:
        return _fell_back(fallback, fallback_cause(error))
    parsed = parse_annotation(answer.text, memory.text)
    return parsed if parsed is not None else _fell_back(fallback, FallbackCause.INVALID_OUTPUT)


def parse_annotation(answer: str, text: str) -> Annotation | None:
    """Return the annotation in a model's answer, or None when it is not usable.

    The object may be surrounded by prose. Words are cleaned and bounded; keywords that share no content word with
    the text are dropped; without one left the answer is not usable (the schema's echo, repetition, prompt words).
    """
    start, end = answer.find("{"), answer.rfind("}")
    if start < 0 or end < start:
        return None
    try:
        raw = json.loads(answer[start : end + 1])
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, dict):
        return None
    context = raw.get("context")
    if not isinstance(context, str):
        return None
    known = set(tokens(text))
    keywords = tuple(word for word in _words(raw.get("keywords")) if set(tokens(word)) & known)
    if not keywords:
        return None
    cleaned = _clean(context, _MAX_CONTEXT_CHARACTERS)
    return Annotation(cleaned, keywords[:_KEYWORDS], _words(raw.get("tags"))[:_TAGS], AnnotationSource.SLM)


def fallback_cause(error: ModelError) -> FallbackCause:
    """Return the documented cause for a failed model call."""
    if isinstance(error, ModelUnavailableError):
        return FallbackCause.UNAVAILABLE
    if isinstance(error, ModelTimeoutError):
        return FallbackCause.TIMEOUT
    if isinstance(error, ModelRequestRefusedError):
        return FallbackCause.INPUT_REFUSED
    return FallbackCause.INVALID_OUTPUT


def _fell_back(fallback: Annotation, cause: FallbackCause) -> Annotation:
    return Annotation(fallback.context, fallback.keywords, fallback.tags, fallback.source, cause)


def _words(raw: object) -> tuple[str, ...]:
    """Return the distinct clean words of a list; anything else in it is dropped."""
    if not isinstance(raw, Sequence) or isinstance(raw, str):
        return ()
    cleaned = (_clean(word, _MAX_WORD_CHARACTERS) for word in raw if isinstance(word, str))
    return tuple(dict.fromkeys(word for word in cleaned if word))


def _clean(text: str, characters: int) -> str:
    """Drop control characters, lone surrogates and markup brackets; one line; bounded."""
    kept = "".join(
        c if c not in "<>" and unicodedata.category(c) not in {"Cc", "Cs", "Co", "Cn"} else " " for c in text
    )
    return " ".join(kept.split())[:characters].strip()
