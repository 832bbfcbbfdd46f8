"""The stage -> EVOLVED: annotation, and links to neighbours, inside the memory's cluster only (paper section 3.2).

For each memory: its nearest neighbours come from its cluster's partition; the SLM, where it is trusted, is asked
once for annotation, links and what changes for the neighbours; links are written on the memory and back on them.
The ingested text is never touched. A round asks for many memories at once, so that the engine has a batch, and
writes their changes in order of arrival in one transaction: older memories are changed by newer ones only, and a
later memory's word comes after an earlier one's. A prompt shows texts, which evolution does not change, so
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
from dataclasses import dataclass, replace

from clag_server.catalog.api import Evolution
from clag_server.memory import prompts
from clag_server.memory.annotate import Annotation, annotate_by_terms
from clag_server.memory.budgets import SlmBudget
from clag_server.memory.counters import Outcome
from clag_server.memory.evolution_answers import Asked, EvolutionAnswer, ask_evolution
from clag_server.memory.linking import Neighbour, Thought, changes_of, evolved_before
from clag_server.memory.namespace import NamespaceState
from clag_server.memory.progress import KeyProgress, ProgressHub
from clag_server.memory.terms import term_candidates
from clag_server.models.api import SlmEngine
from clag_server.types.competence import Skill
from clag_server.types.ingest import AckLevel
from clag_server.types.memory import AnnotationSource, Annotator, FallbackCause, LinkKind, Memory, MemoryState

_WAITING = (MemoryState.EMBEDDED, MemoryState.ROUTED)
_KEYS_A_READ = 1024


@dataclass(frozen=True, slots=True)
class _Jobs:
    """What the SLM is asked for now."""

    annotation: bool
    evolution: bool

    @property
    def any(self) -> bool:
        return self.annotation or self.evolution


class EvolveStage:
    """Evolves placed memories of one namespace, oldest first."""

    def __init__(self, state: NamespaceState, *, slm: SlmEngine | None, hub: ProgressHub) -> None:
        self._state = state
        self._slm = slm
        self._hub = hub
        self._passed = -1
        """Whatever waits with keys up to this one is for later."""
        self._budget = SlmBudget(state.organize)

    def rewind(self, first: int = 0) -> None:
        """Say that memories may wait that the last rounds passed over, the first of them with the key `first`."""
        self._passed = min(self._passed, first - 1)

    async def round(self, *, skip: Collection[int] = (), patient: bool = False) -> int:
        """Evolve one batch; returns how many memories were looked at. `skip` are keys to leave for later.

        One that was moved meanwhile is looked at again in the next round. `patient`: the SLM is asked however long
        this takes.
        """
        memories = await self._due(skip)
        if not patient:
            more = len(memories) >= self._state.organize.evolve_batch
            self._budget.looked(more=more, now_ns=self._state.now_ns())
        if not memories:
            return 0
        neighbours, by_terms = await asyncio.gather(self._neighbours(memories), self._by_terms(memories))
        thoughts = await self._think(memories, neighbours, by_terms, patient=patient)
        evolved, changes = await self._commit(memories, neighbours, thoughts)
        self._count(evolved, changes, thoughts)
        return len(memories)

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

    def _jobs(self) -> _Jobs:
        """What the SLM is asked for: what the settings force, or what it is trusted with."""
        trust = self._state.competence.trust
        match self._state.organize.annotate:
            case Annotator.TERMS:
                return _Jobs(annotation=False, evolution=False)
            case Annotator.SLM:
                return _Jobs(annotation=True, evolution=True)
            case Annotator.AUTO:
                known = self._slm is not None
                return _Jobs(
                    annotation=known and trust.asked(Skill.ANNOTATION),
                    evolution=known and trust.asked(Skill.EVOLUTION),
                )

    async def _think(
        self,
        memories: Sequence[Memory],
        neighbours: Mapping[int, Sequence[Neighbour]],
        by_terms: Mapping[int, Annotation],
        *,
        patient: bool,
    ) -> dict[int, Thought]:
        """Ask the SLM about as many as the budget allows, oldest first; the terms stand in for the others."""
        jobs = self._jobs()
        if not jobs.any:
            return {memory.key: Thought(by_terms[memory.key]) for memory in memories}
        if self._slm is None:
            cause = FallbackCause.DISABLED
            return {m.key: Thought(replace(by_terms[m.key], fallback=cause)) for m in memories}
        shown = {m.key: self._shown(neighbours[m.key]) if jobs.evolution else [] for m in memories}
        # New memories first; of one that was moved only what it may have met.
        asked = [m for m in memories if not evolved_before(m)]
        asked += [m for m in memories if evolved_before(m) and shown[m.key] and _moved_on_purpose(m)]
        granted = self._budget.grant(len(asked), now_ns=self._state.now_ns(), patient=patient)
        answers = await asyncio.gather(*(self._ask(self._slm, m, shown[m.key]) for m in asked[:granted]))
        self._state.counters.add(Outcome.SLM_EVOLUTION_CALLS, granted)
        given = dict(zip((m.key for m in asked[:granted]), answers, strict=True))
        unasked = EvolutionAnswer(None, fallback=FallbackCause.BUDGET)
        return {
            m.key: _thought(given.get(m.key, unasked), by_terms[m.key], shown[m.key], jobs, self._slm.name)
            for m in memories
        }

    def _shown(self, neighbours: Sequence[Neighbour]) -> list[Neighbour]:
        """The nearest neighbours that the SLM is to judge: what says the same needs no judgement."""
        wanted = min(self._state.organize.slm_neighbours, prompts.MOST_NEIGHBOURS)
        most = self._state.organize.duplicate_cosine
        return [near for near in neighbours if near.cosine < most][:wanted]

    async def _ask(self, slm: SlmEngine, memory: Memory, shown: Sequence[Neighbour]) -> EvolutionAnswer:
        texts = tuple(prompts.spoken(near.memory.text, near.memory.speaker) for near in shown)
        asked = Asked(memory.text, memory.speaker, texts)
        answer = await ask_evolution(slm, asked, deadline_s=self._state.organize.slm_timeout_s or None)
        self._state.counters.add(Outcome.SLM_DROPPED, answer.dropped)
        return answer

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
            stay = [m for m in memories if _same(m, now.get(m.key))]
            there = await state.catalog.keys_of_placements(state.ns, sorted(placements))
            changes: list[Evolution] = []
            given: Counter[int] = Counter()
            for memory in stay:
                near = [one for one in neighbours[memory.key] if one.placement in there]
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


def _thought(
    answer: EvolutionAnswer, by_terms: Annotation, shown: Sequence[Neighbour], jobs: _Jobs, model: str
) -> Thought:
    """Take from an answer what the SLM was asked for, and the terms for what it was not or did not give."""
    annotation = answer.annotation if jobs.annotation else by_terms
    return Thought(
        annotation=annotation or replace(by_terms, fallback=answer.fallback),
        links=tuple((shown[link.neighbour].placement, link) for link in answer.links),
        updates=tuple((shown[update.neighbour].placement, update) for update in answer.updates),
        model=model,
    )


def _moved_on_purpose(memory: Memory) -> bool:
    """Whether a client or a re-organization moved a memory: routing weighs candidates, and belongs to its arrival.

    What routing moves it moves at once, often a third of all memories: a second call for each would cost more than
    it finds.
    """
    return memory.routing is not None and not memory.routing.candidates


def _precedes(other: Memory, memory: Memory) -> bool:
    """Whether evolution comes to `other` before `memory`: then nobody else will link the two."""
    return other.key != memory.key and (other.key < memory.key or other.state is MemoryState.EVOLVED)


def _same(memory: Memory, now: Memory | None) -> bool:
    """Whether a memory still has the place and the words that it was annotated with."""
    return now is not None and now.cluster == memory.cluster and now.text == memory.text
