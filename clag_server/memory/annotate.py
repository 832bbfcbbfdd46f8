"""Annotation of a memory: context, keywords and tags; the deterministic one, which stands in for the SLM's.

It takes the most distinctive terms of the memory itself, so it needs no model and says nothing that is not there.
How the SLM is asked is told in `evolution_answers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clag_server.memory.terms import distinctive, term_candidates, written
from clag_server.models.api import (
    ModelError,
    ModelRequestRefusedError,
    ModelTimeoutError,
    ModelUnavailableError,
)
from clag_server.types.cluster import Cluster
from clag_server.types.memory import AnnotationSource, FallbackCause, Memory

KEYWORDS = 5
"""Keywords of one memory, at most."""

TAGS = 5
"""Evolved tags of one memory, at most."""


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
        distinctive(counts, document_frequency, documents, limit=2 * KEYWORDS), [memory.text], limit=KEYWORDS
    )
    tags: tuple[str, ...] = ()
    if cluster is not None:
        tags = tuple(tag for tag in cluster.tags if term_candidates(tag).keys() & counts.keys())[:TAGS]
    return Annotation("", keywords, tags, AnnotationSource.STATISTICS)


def fallback_cause(error: ModelError) -> FallbackCause:
    """Return the documented cause for a failed model call."""
    if isinstance(error, ModelUnavailableError):
        return FallbackCause.UNAVAILABLE
    if isinstance(error, ModelTimeoutError):
        return FallbackCause.TIMEOUT
    if isinstance(error, ModelRequestRefusedError):
        return FallbackCause.INPUT_REFUSED
    return FallbackCause.INVALID_OUTPUT
