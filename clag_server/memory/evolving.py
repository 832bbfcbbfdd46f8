"""The stage -> EVOLVED: annotation, and links to neighbours, inside the memory's cluster only (paper section 3.2).

For each memory: its nearest neighbours come from its cluster's partition, links with kind and reason are written
on it and back on them, and it gets context, keywords and tags. The ingested text is never touched. Older memories
are changed by newer ones only, so a cluster evolves in order of arrival. A memory that an update rewrote comes
late: it is linked to those too that arrived after it and have evolved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from clag_server.catalog.api import Evolution
from clag_server.memory.annotate import Annotation, annotate_by_terms
from clag_server.memory.counters import Outcome
from clag_server.memory.evolution_answers import Asked, ask_evolution
from clag_server.memory.lexical import tokens
from clag_server.memory.namespace import NamespaceState
from clag_server.memory.progress import KeyProgress, ProgressHub
from clag_server.memory.terms import term_candidates
from clag_server.models.api import SlmEngine
from clag_server.types.ingest import AckLevel
from clag_server.types.memory import AnnotationSource, FallbackCause, Link, LinkKind, Memory, MemoryState

_WAITING = (MemoryState.EMBEDDED, MemoryState.ROUTED)
_KEYS_A_READ = 1024


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A memory of the same cluster that evolution has passed, its cosine, and the placement that was found."""

    memory: Memory
    cosine: float
    placement: int


class EvolveStage:
    """Evolves placed memories of one namespace, oldest first."""

    def __init__(self, state: NamespaceState, *, slm: SlmEngine | None, hub: ProgressHub) -> None:
        self._state = state
        self._slm = slm
        self._hub = hub
        self._passed = -1
        """Whatever waits with keys up to this one is for later."""

    def rewind(self, first: int = 0) -> None:
        """Say that memories may wait that the last rounds passed over, the first of them with the key `first`."""
        self._passed = min(self._passed, first - 1)

    async def round(self, *, skip: Collection[int] = ()) -> int:
        """Evolve one batch; returns how many memories were looked at. `skip` are keys to leave for later.

        One that was moved meanwhile is looked at again in the next round.
        """
        memories = await self._due(skip)
        if not memories:
            return 0
        neighbours, annotations = await asyncio.gather(self._neighbours(memories), self._annotations(memories))
        evolved, changes = await self._commit(memories, neighbours, annotations)
        self._count(evolved, changes, annotations)
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
                break
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

    async def _annotations(self, memories: Sequence[Memory]) -> dict[int, Annotation]:
        state = self._state
        terms = sorted({token for memory in memories for token in term_candidates(memory.text)})
        frequency, documents = await state.catalog.document_frequency(state.ns, terms)
        by_terms = {
            memory.key: annotate_by_terms(memory, state.map.clusters.get(memory.cluster or 0), frequency, documents)
            for memory in memories
        }
        if state.organize.annotate != "slm":
            return by_terms
        if self._slm is None:
            return {
                key: Annotation(a.context, a.keywords, a.tags, a.source, FallbackCause.DISABLED)
                for key, a in by_terms.items()
            }
        answers = await asyncio.gather(*(ask_evolution(self._slm, Asked(m.text, m.speaker)) for m in memories))
        return {
            memory.key: answer.annotation or replace(by_terms[memory.key], fallback=answer.fallback)
            for memory, answer in zip(memories, answers, strict=True)
        }

    async def _commit(
        self,
        memories: Sequence[Memory],
        neighbours: Mapping[int, Sequence[Neighbour]],
        annotations: Mapping[int, Annotation],
    ) -> tuple[list[Memory], list[Evolution]]:
        """Write what still holds; returns which memories evolved, and their changes.

        A memory that was moved or rewritten meanwhile evolves as it is, next round; a neighbour that was is not
        linked to.
        """
        state = self._state
        model = self._slm.name if self._slm else ""
        placements = {near.placement for found in neighbours.values() for near in found}
        async with state.lock:
            now = {m.key: m for m in await state.catalog.memories(state.ns, [m.key for m in memories])}
            stay = [m for m in memories if _same(m, now.get(m.key))]
            there = await state.catalog.keys_of_placements(state.ns, sorted(placements))
            changes: list[Evolution] = []
            for memory in stay:
                near = [one for one in neighbours[memory.key] if one.placement in there]
                changes += _changes(memory, near, annotations[memory.key], state, model=model)
            await asyncio.shield(state.catalog.evolve(state.ns, changes, now_ns=state.now_ns()))
        self._hub.publish(
            KeyProgress(m.key, AckLevel.ORGANIZED, now[m.key].cluster, MemoryState.EVOLVED)
            for m in sorted(stay, key=lambda m: m.key)
        )
        return stay, changes

    def _count(
        self, evolved: Sequence[Memory], changes: Sequence[Evolution], annotations: Mapping[int, Annotation]
    ) -> None:
        counters = self._state.counters
        counters.add(Outcome.EVOLVED, len(evolved))
        counters.add(Outcome.LINKS, sum(len(c.add_links) for c in changes))
        for key in (memory.key for memory in evolved):
            counters.add(Outcome.ANNOTATIONS)
            if annotations[key].source is AnnotationSource.SLM:
                counters.add(Outcome.SLM_ANNOTATIONS)
            if annotations[key].fallback is not FallbackCause.NONE:
                counters.add_fallback(Outcome.ANNOTATION_FALLBACKS, annotations[key].fallback)


def _precedes(other: Memory, memory: Memory) -> bool:
    """Whether evolution comes to `other` before `memory`: then nobody else will link the two."""
    return other.key != memory.key and (other.key < memory.key or other.state is MemoryState.EVOLVED)


def _same(memory: Memory, now: Memory | None) -> bool:
    """Whether a memory still has the place and the words that it was annotated with."""
    return now is not None and now.cluster == memory.cluster and now.text == memory.text


def _changes(
    memory: Memory,
    neighbours: Sequence[Neighbour],
    annotation: Annotation,
    state: NamespaceState,
    *,
    model: str,
) -> list[Evolution]:
    """Return the memory's own evolution and the links back from its neighbours."""
    if memory.cluster is None:
        return []
    links = [link for link in (_link(memory, near, state) for near in neighbours) if link is not None]
    own = Evolution(
        key=memory.key,
        cluster=memory.cluster,
        cause=memory.key,
        context=annotation.context,
        keywords=annotation.keywords,
        evolved_tags=annotation.tags,
        add_links=tuple(links[: state.organize.max_links]),
        annotated_by=annotation.source,
        state=MemoryState.EVOLVED,
        model=model if annotation.source is AnnotationSource.SLM else "",
    )
    by_id = {near.memory.memory_id: near for near in neighbours}
    back = [
        Evolution(
            key=by_id[link.memory_id].memory.key,
            cluster=memory.cluster,
            cause=memory.key,
            add_links=(Link(memory.memory_id, link.kind, link.reason, link.similarity),),
        )
        for link in links
        if len(by_id[link.memory_id].memory.links) < state.organize.max_links
    ]
    return [own, *back]


def _link(memory: Memory, near: Neighbour, state: NamespaceState) -> Link | None:
    """Link by what can be known without a model: supersession, equal words, succession, likeness."""
    other, cosine = near.memory, near.cosine
    if other.memory_id in memory.supersedes or memory.memory_id in other.supersedes:
        return Link(other.memory_id, LinkKind.REFINES, "the newer one replaces the older one", cosine)
    if cosine >= state.organize.duplicate_cosine and tokens(memory.text) == tokens(other.text):
        return Link(other.memory_id, LinkKind.DUPLICATE, "says the same", cosine)
    follows = memory.episode == other.episode and abs(memory.session_position - other.session_position) == 1
    if follows and cosine >= state.organize.episode_cosine:
        return Link(other.memory_id, LinkKind.TEMPORAL, "follows directly in the same session", cosine)
    if cosine >= state.organize.link_cosine:
        return Link(other.memory_id, LinkKind.SIMILAR, f"near in meaning (cosine {cosine:.2f})", cosine)
    return None
