"""Outcome counters of one namespace since the server started (M7: fallbacks are counted, not hidden)."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping

from clag_server.types.memory import FallbackCause


class Outcome(enum.StrEnum):
    """What is counted."""

    EMBEDDED = "embedded"
    EPISODES_CLOSED = "episodes_closed"
    CLUSTERS_BORN = "clusters_born"
    CLUSTERS_SPLIT = "clusters_split"
    SLM_VOTES = "slm_votes"
    SLM_AGREED = "slm_agreed"
    SLM_MOVED = "slm_moved"
    DEFERRED = "deferred"
    VOTE_FALLBACKS = "vote_fallbacks"
    EVOLVED = "evolved"
    LINKS = "links"
    ANNOTATIONS = "annotations"
    SLM_ANNOTATIONS = "slm_annotations"
    ANNOTATION_FALLBACKS = "annotation_fallbacks"
    SLM_EVOLUTION_CALLS = "slm_evolution_calls"
    SLM_LINKS = "slm_links"
    SLM_REWRITES = "slm_rewrites"
    SLM_DROPPED = "slm_dropped"
    CONFLICTS = "conflicts"
    PROFILES = "profiles"
    SLM_PROFILES = "slm_profiles"
    PROFILE_FALLBACKS = "profile_fallbacks"
    FAILED_ATTEMPTS = "failed_attempts"
    QUARANTINED = "quarantined"
    RETRIEVALS = "retrievals"
    SLM_SELECTIONS = "slm_selections"
    SELECTION_FALLBACKS = "selection_fallbacks"


class Counters:
    """Counts outcomes; used from one event loop."""

    def __init__(self) -> None:
        self._counts: Counter[Outcome] = Counter()
        self._fallbacks: Counter[FallbackCause] = Counter()

    def add(self, outcome: Outcome, n: int = 1) -> None:
        """Count `n` more."""
        self._counts[outcome] += n

    def add_fallback(self, outcome: Outcome, cause: FallbackCause) -> None:
        """Count a decision or an annotation that was made without the SLM's word, and why."""
        self._counts[outcome] += 1
        self._fallbacks[cause] += 1

    def fallbacks(self) -> Mapping[FallbackCause, int]:
        """Return the fallbacks by cause, those that happened; their sum is that of the fallback outcomes."""
        return dict(self._fallbacks)

    def snapshot(self) -> Mapping[str, int]:
        """Return all counts by name, zeros included."""
        return {outcome.value: self._counts[outcome] for outcome in Outcome}
