"""The stage that keeps profiles fresh: of clusters that changed enough, a few in a round, oldest numbers first.

The SLM writes them where it is trusted with annotation, all of a round at once and without the namespace's lock,
which a model would hold for seconds. What it wrote of a cluster that changed meanwhile is thrown away: it may hold
words that a client took back.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from clag_server.memory.counters import Outcome
from clag_server.memory.namespace import NamespaceState
from clag_server.memory.profile_answers import ProfileDraft, ask_profile
from clag_server.memory.profiles import Sample, due, profile, sample
from clag_server.models.api import SlmEngine
from clag_server.types.cluster import Cluster, ClusterField
from clag_server.types.competence import Skill
from clag_server.types.memory import Annotator, FallbackCause

_PER_ROUND = 8
_LEAST_MEMORIES = 4
"""Smaller clusters are named by their words alone: what they have in common is not to be seen yet."""

_ALL_FIELDS = frozenset(ClusterField)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A cluster as it was looked at, its memories, and what the SLM wrote of them (None: it was not asked)."""

    cluster: Cluster
    members: Sample
    draft: ProfileDraft | None


class ProfileStage:
    """Refreshes the profiles of one namespace."""

    def __init__(self, state: NamespaceState, *, slm: SlmEngine | None) -> None:
        self._state = state
        self._slm = slm
        self._in_vain: set[int] = set()
        """Clusters that changed while the SLM wrote: the next profile is made without it, or none would come."""

    async def round(self) -> int:
        """Refresh due profiles; returns how many were looked at."""
        clusters = self._state.map.clusters
        waiting = sorted(number for number, cluster in clusters.items() if due(cluster))[:_PER_ROUND]
        for seen in await asyncio.gather(*(self._look(clusters[number]) for number in waiting)):
            if seen is not None:
                await self._write(seen)
        return len(waiting)

    async def _look(self, cluster: Cluster) -> _Seen | None:
        """Return what there is to write of; None of a cluster that went since it was found due."""
        state = self._state
        if cluster.cluster not in state.map.clusters:
            return None
        members = await sample(state.catalog, state.ns, state.map, cluster.cluster)
        return _Seen(cluster, members, await self._draft(cluster, members))

    async def _write(self, seen: _Seen) -> None:
        state, number, members, draft = self._state, seen.cluster.cluster, seen.members, seen.draft
        async with state.lock:
            cluster = state.map.clusters.get(number)
            if cluster is None or cluster.revision != seen.cluster.revision:
                if draft is not None:
                    self._in_vain.add(number)
                return  # merged away; or again in the next round
            taken = self._titles_but(number)
            fresh = await profile(
                state.catalog, state.ns, cluster, members, taken, now_ns=state.now_ns(), draft=draft
            )
            await asyncio.shield(state.catalog.put_clusters(state.ns, [fresh]))
            state.map.put_cluster(fresh)
        self._in_vain.discard(number)
        self._count(draft)

    async def _draft(self, cluster: Cluster, members: Sample) -> ProfileDraft | None:
        """Ask the SLM, where it is trusted and there is something for it to write."""
        number = cluster.cluster
        if self._slm is None or number in self._in_vain or not self._asked():
            return None
        if cluster.client_fields >= _ALL_FIELDS or cluster.memory_count < _LEAST_MEMORIES:
            return None
        speakers = {memory.key: memory for memory in (*members.representatives, *members.memories)}
        wait_s = self._state.organize.slm_timeout_s or None
        return await ask_profile(self._slm, list(speakers.values()), self._titles_but(number), deadline_s=wait_s)

    def _asked(self) -> bool:
        match self._state.organize.annotate:
            case Annotator.TERMS:
                return False
            case Annotator.SLM:
                return True
            case Annotator.AUTO:
                return self._state.competence.trust.asked(Skill.ANNOTATION)

    def _titles_but(self, number: int) -> set[str]:
        return {cluster.title for n, cluster in self._state.map.clusters.items() if n != number}

    def _count(self, draft: ProfileDraft | None) -> None:
        counters = self._state.counters
        counters.add(Outcome.PROFILES)
        if draft is None:
            return
        if draft.fallback is FallbackCause.NONE:
            counters.add(Outcome.SLM_PROFILES)
        else:
            counters.add(Outcome.PROFILE_FALLBACKS)
