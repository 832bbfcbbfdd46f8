"""The stage -> EVOLVED: annotation, and links to neighbours, inside the memory's cluster only (paper section 3.2).

For each memory: its nearest neighbours come from its cluster's partition; the SLM, where it is trusted, is asked
once for annotation, links and what changes for the neighbours; links are written on the memory and back on them.
The ingested text is never touched. Many memories are asked about at once, so that the engine has a batch, and
their changes are written in order of arrival: older memories are changed by newer ones only, and a later memory's
word comes after an earlier one's. A prompt shows texts, which evolution does not change, so
memories of one cluster that come together need not wait for each other's answers. A memory that an update
rewrote comes late: it is linked to those too that arrived after it and have evolved.

A memory that was moved among others after it had evolved evolves once more, in its new cluster: it keeps what the
SLM wrote on it and all its links, which say what is known of two memories wherever they are, and is linked to
neighbours that it had not met. The SLM is asked about it once more only where a client or a re-organization moved
it, after new memories.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from clag_server.catalog.api import Evolution
from clag_server.memory.annotate import Annotation, annotate_by_terms
from clag_server.memory.budgets import SlmBudget
from clag_server.memory.counters import Outcome
from clag_server.memory.linking import Neighbour, Thought, changes_of, evolved_before
from clag_server.memory.namespace import NamespaceState
from clag_server.memory.progress import KeyProgress, ProgressHub
from clag_server.memory.terms import term_candidates
from clag_server.memory.thinking import Thinking, same
from clag_server.models.api import SlmEngine
from clag_server.types.ingest import AckLevel
from clag_server.types.memory import AnnotationSource, FallbackCause, LinkKind, Memory, MemoryState

_WAITING = (MemoryState.EMBEDDED, MemoryState.ROUTED)
_KEYS_A_READ = 1024


class EvolveStage:
    """Evolves placed memories of one namespace, oldest first."""

    def __init__(self, state: NamespaceState, *, slm: SlmEngine | None, hub: ProgressHub) -> None:
        self._state = state
        self._slm = slm
        self._hub = hub
        self._passed = -1
        """Whatever waits with keys up to this one is for later."""
        self._budget = SlmBudget(state.organize)
        self._thinking = Thinking(state, slm=slm, budget=self._budget)
        self._more = asyncio.Event()
        """Set when others may be due than those that a round looked at."""

    async def stop(self) -> None:
        """Leave what the SLM is being asked."""
        await self._thinking.stop()

    def rewind(self, first: int = 0) -> None:
        """Say that memories may wait that the last rounds passed over, the first of them with the key `first`."""
        self._passed = min(self._passed, first - 1)
        self._more.set()

    async def round(self, *, skip: Collection[int] = (), patient: bool = False) -> int:
        """Evolve the oldest of a batch; returns how many memories that were. `skip` are keys to leave for later.

        One that was moved meanwhile is looked at again in the next round. `patient`: the SLM is asked however long
        this takes.
        """
        ready: list[Memory] = []
        while not ready:
            self._more.clear()
            memories = await self._due(skip)
            full = len(memories) >= self._state.organize.evolve_batch
            if not patient:
                self._budget.looked(more=full, now_ns=self._state.now_ns())
            if not memories:
                return 0
            if unknown := self._thinking.unknown(memories):
                neighbours, by_terms = await asyncio.gather(self._neighbours(unknown), self._by_terms(unknown))
                self._thinking.begin(unknown, neighbours, by_terms, patient=patient)
            # What comes meanwhile joins those that are thought about, as long as there is room for it.
            ready = await self._thinking.ready(memories, more=None if full else self._more)
        taken = {memory.key: self._thinking.take(memory) for memory in ready}
        thoughts = {key: thought for key, (_, thought) in taken.items()}
        evolved, changes = await self._commit(ready, {key: near for key, (near, _) in taken.items()}, thoughts)
        self._count(evolved, changes, thoughts)
        return len(ready)

    async def _due(self, skip: Collection[int]) -> list[Memory]:
        """Return the next batch. What `skip` holds is read as keys only, and not again until `rewind`."""
        state, batch = self._state, self._state.organize.evolve_batch
        keys: list[int] = []
        while len(keys) < batch:
            after = keys[-1] if keys else self._passed
            page = await state.catalog.pending_keys(state.ns, _WAITING, after=after, limit=_KEYS_A_READ)
            keys += [key for key in page if key not in skip]
            if len(page) < _KEYS_A_READ:
                if keys or not state.evolve_again:
                    break
                # Nothing new is left: those that were moved may be among what was passed over.
                state.evolve_again, self._passed = False, -1
                continue
            if not keys:
                self._passed = page[-1]
            elif page[-1] > keys[-1]:
                break  # what follows is for later; the next round passes over it
        found = await state.catalog.memories(state.ns, keys[:batch], embeddings=True)
        return [memory for memory in found if memory.state in _WAITING]

    async def _neighbours(self, memories: Sequence[Memory]) -> dict[int, list[Neighbour]]:
        """Nearest members of each memory's cluster that are earlier or have evolved, best first."""
        state = self._state
        hits = await asyncio.gather(*(self._search(memory) for memory in memories))
        placements = {hit for found in hits for hit, _ in found}
        keys = await state.catalog.keys_of_placements(state.ns, sorted(placements))
        known = {m.key: m for m in await state.catalog.memories(state.ns, sorted(set(keys.values())))}
        result: dict[int, list[Neighbour]] = {}
        for memory, found in zip(memories, hits, strict=True):
            near = [(known[keys[p]], score, p) for p, score in found if p in keys and keys[p] in known]
            result[memory.key] = [
                Neighbour(other, score, placement)
                for other, score, placement in near
                if other.cluster == memory.cluster and _precedes(other, memory)
            ][: state.organize.link_neighbours]
        return result

    async def _search(self, memory: Memory) -> list[tuple[int, float]]:
        if memory.embedding is None or memory.cluster is None:
            return []
        # Twice as many: the memory itself and later ones are found too and do not count.
        found = await self._state.index.search(
            self._state.ns, [memory.cluster], memory.embedding, limit=2 * self._state.organize.link_neighbours + 1
        )
        return [(hit.placement_id, hit.score) for hit in found.hits]

    async def _by_terms(self, memories: Sequence[Memory]) -> dict[int, Annotation]:
        state = self._state
        terms = sorted({token for memory in memories for token in term_candidates(memory.text)})
        frequency, documents = await state.catalog.document_frequency(state.ns, terms)
        clusters = state.map.clusters
        return {
            memory.key: annotate_by_terms(memory, clusters.get(memory.cluster or 0), frequency, documents)
            for memory in memories
        }

    async def _commit(
        self,
        memories: Sequence[Memory],
        neighbours: Mapping[int, Sequence[Neighbour]],
        thoughts: Mapping[int, Thought],
    ) -> tuple[list[Memory], list[Evolution]]:
        """Write what still holds; returns which memories evolved, and their changes.

        A memory that was moved or rewritten meanwhile evolves as it is, next round; a neighbour that was is not
        linked to.
        """
        state = self._state
        placements = {near.placement for found in neighbours.values() for near in found}
        async with state.lock:
            now = {m.key: m for m in await state.catalog.memories(state.ns, [m.key for m in memories])}
            stay = [m for m in memories if same(m, now.get(m.key))]
            there = await state.catalog.keys_of_placements(state.ns, sorted(placements))
            # As they are now: they may have got links and words since they were found.
            near_now = {m.key: m for m in await state.catalog.memories(state.ns, sorted(set(there.values())))}
            changes: list[Evolution] = []
            given: Counter[int] = Counter()
            for memory in stay:
                near = [
                    replace(one, memory=near_now[key])
                    for one in neighbours[memory.key]
                    if (key := there.get(one.placement)) in near_now
                ]
                made = changes_of(memory, near, thoughts[memory.key], state.organize, given=given)
                given.update({change.key: len(change.add_links) for change in made})
                changes += made
            await asyncio.shield(state.catalog.evolve(state.ns, changes, now_ns=state.now_ns()))
        self._hub.publish(
            KeyProgress(m.key, AckLevel.ORGANIZED, now[m.key].cluster, MemoryState.EVOLVED)
            for m in sorted(stay, key=lambda m: m.key)
        )
        return stay, changes

    def _count(
        self, evolved: Sequence[Memory], changes: Sequence[Evolution], thoughts: Mapping[int, Thought]
    ) -> None:
        counters = self._state.counters
        fresh = [memory for memory in evolved if not evolved_before(memory)]
        counters.add(Outcome.EVOLVED, len(fresh))
        counters.add(Outcome.LINKS, sum(len(c.add_links) for c in changes))
        own = [link for c in changes if c.key == c.cause for link in c.add_links]
        counters.add(Outcome.CONFLICTS, sum(link.kind is LinkKind.CONTRADICTS for link in own))
        for thought in (thoughts[memory.key] for memory in evolved):
            counters.add(Outcome.SLM_LINKS, len(thought.links))
            counters.add(Outcome.SLM_REWRITES, len(thought.updates))
        for thought in (thoughts[memory.key] for memory in fresh):
            counters.add(Outcome.ANNOTATIONS)
            if thought.annotation.source is AnnotationSource.SLM:
                counters.add(Outcome.SLM_ANNOTATIONS)
            if thought.annotation.fallback is not FallbackCause.NONE:
                counters.add_fallback(Outcome.ANNOTATION_FALLBACKS, thought.annotation.fallback)


def _precedes(other: Memory, memory: Memory) -> bool:
    """Whether evolution comes to `other` before `memory`: then nobody else will link the two."""
    return other.key != memory.key and (other.key < memory.key or other.state is MemoryState.EVOLVED)
