"""From neighbours and the SLM's proposals to links and changes, on the new memory and back on its neighbours.

The base needs no model: supersession, equal words, succession, likeness, plain contradiction. What the SLM proposes
joins it; of a neighbour that it has a word for, mere likeness is no longer told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from clag_server.catalog.api import Evolution
from clag_server.memory.annotate import Annotation
from clag_server.memory.config import OrganizeConfig
from clag_server.memory.conflicts import gives_way, is_newer, other_value
from clag_server.memory.evolution_answers import ProposedLink, ProposedUpdate
from clag_server.memory.lexical import tokens
from clag_server.types.memory import AnnotationSource, Link, LinkKind, Memory, MemoryState

_NOTHING: Final[Mapping[int, int]] = {}
_MOST_LINKS = 32
"""Links of one memory by the contract. A contradiction may exceed `max_links`: it must not stay unseen."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A memory of the same cluster that evolution has passed, its cosine, and the placement that was found."""

    memory: Memory
    cosine: float
    placement: int


@dataclass(frozen=True, slots=True)
class Thought:
    """What is thought of one memory: its annotation, and the SLM's proposals by placement of the neighbour."""

    annotation: Annotation
    links: tuple[tuple[int, ProposedLink], ...] = ()
    updates: tuple[tuple[int, ProposedUpdate], ...] = ()
    model: str = ""
    """The SLM that was asked, "" where none was."""


def changes_of(
    memory: Memory,
    neighbours: Sequence[Neighbour],
    thought: Thought,
    config: OrganizeConfig,
    *,
    given: Mapping[int, int] = _NOTHING,
) -> list[Evolution]:
    """Return a memory's own evolution, and what it changes on its neighbours, all within its cluster.

    Args:
        memory: The memory, as it was read.
        neighbours: Its nearest neighbours, as they were read.
        thought: What is thought of it.
        config: Thresholds.
        given: Links that memories (by key) get in this round and did not have when they were read.
    """
    if memory.cluster is None:
        return []
    linked = _linked(memory, neighbours, thought, config)
    annotation, keeps = thought.annotation, _keeps_annotation(memory, thought.annotation)
    # Tags by terms are words of the cluster, which is another one now.
    tagged = not keeps or memory.annotated_by is annotation.source is AnnotationSource.STATISTICS
    by_slm = (annotation.source is AnnotationSource.SLM and not keeps) or thought.links
    own = Evolution(
        key=memory.key,
        cluster=memory.cluster,
        cause=memory.key,
        context=None if keeps else annotation.context,
        keywords=None if keeps else annotation.keywords,
        evolved_tags=annotation.tags if tagged else None,
        add_links=tuple(link for _, links in linked for link in links),
        superseded_by=_replaced_by(memory, linked),
        annotated_by=None if keeps else annotation.source,
        state=MemoryState.EVOLVED,
        model=thought.model if by_slm else "",
    )
    updates = dict(thought.updates)
    back = [
        _back(
            memory,
            near,
            links,
            updates.get(near.placement),
            thought,
            free=config.max_links - len(near.memory.links) - given.get(near.memory.key, 0),
        )
        for near, links in linked
    ]
    return [own, *(change for change in back if change is not None)]


def evolved_before(memory: Memory) -> bool:
    """Return whether a memory that waits for evolution had evolved in another cluster, with the words it has."""
    return memory.routing is not None and memory.routing.evolve_again


def _keeps_annotation(memory: Memory, annotation: Annotation) -> bool:
    """Whether a memory keeps the annotation that it has: it evolves again, and the new one is no better."""
    if not evolved_before(memory) or memory.annotated_by is AnnotationSource.NONE:
        return False
    return annotation.source is not AnnotationSource.SLM or memory.annotated_by is AnnotationSource.SLM


def _linked(
    memory: Memory, neighbours: Sequence[Neighbour], thought: Thought, config: OrganizeConfig
) -> list[tuple[Neighbour, list[Link]]]:
    """Return the neighbours that are linked to, best first, each with its links; `max_links` in all.

    One that evolves again is linked to those only that it had not met, and its older links count too.
    """
    proposed = dict(thought.links)
    found: list[tuple[Neighbour, list[Link]]] = []
    known = memory.links if evolved_before(memory) else ()
    met, told = {link.memory_id for link in known}, {(link.memory_id, link.kind) for link in known}
    count = len(known)
    for near in neighbours:
        base = _base(memory, near, config)
        if base is not None and base.kind is LinkKind.SIMILAR and near.memory.memory_id in met:
            base = None
        links = _joined(base, _proposed(near, proposed.get(near.placement), base))
        links = [link for link in links if (link.memory_id, link.kind) not in told]
        most = [_MOST_LINKS if known and link.kind is LinkKind.CONTRADICTS else config.max_links for link in links]
        links = [link for i, (link, bound) in enumerate(zip(links, most, strict=True)) if count + i < bound]
        count += len(links)
        if links:
            found.append((near, links))
    return found


def _base(memory: Memory, near: Neighbour, config: OrganizeConfig) -> Link | None:
    """Link by what can be known without a model."""
    other, cosine = near.memory, near.cosine
    if other.memory_id in memory.supersedes or memory.memory_id in other.supersedes:
        return Link(other.memory_id, LinkKind.REFINES, "the newer one replaces the older one", cosine)
    same = cosine >= config.duplicate_cosine and memory.speaker == other.speaker
    if same and tokens(memory.text) == tokens(other.text):
        return Link(other.memory_id, LinkKind.DUPLICATE, "says the same", cosine)
    if config.find_conflicts and (why := other_value(memory, other)) is not None:
        return Link(other.memory_id, LinkKind.CONTRADICTS, why, cosine)
    follows = memory.episode == other.episode and abs(memory.session_position - other.session_position) == 1
    if follows and cosine >= config.episode_cosine:
        return Link(other.memory_id, LinkKind.TEMPORAL, "follows directly in the same session", cosine)
    if cosine >= config.link_cosine:
        return Link(other.memory_id, LinkKind.SIMILAR, f"near in meaning (cosine {cosine:.2f})", cosine)
    return None


def _proposed(near: Neighbour, link: ProposedLink | None, base: Link | None) -> Link | None:
    """Return the SLM's link, unless it contradicts what is certain: equal words cannot disagree."""
    if link is None or (base is not None and base.kind in (LinkKind.DUPLICATE, link.kind)):
        return None
    return Link(near.memory.memory_id, link.kind, link.reason, near.cosine)


def _joined(base: Link | None, proposed: Link | None) -> list[Link]:
    if base is not None and proposed is not None and base.kind is LinkKind.SIMILAR:
        base = None
    return [link for link in (proposed, base) if link is not None]


def _back(
    memory: Memory,
    near: Neighbour,
    links: Sequence[Link],
    update: ProposedUpdate | None,
    thought: Thought,
    *,
    free: int,
) -> Evolution | None:
    """Return what the memory changes on a linked neighbour: links back, context and tags, what holds now."""
    other = near.memory
    back = tuple(
        replace(link, memory_id=memory.memory_id)
        for i, link in enumerate(links)
        if i < free or (link.kind is LinkKind.CONTRADICTS and len(other.links) + i < _MOST_LINKS)
    )
    if not back:
        return None  # nor is it rewritten: what a memory wrote on others is found again by their links to it
    replaced = _contradicts(links) and is_newer(memory, other) and gives_way(other, memory)
    by_slm = update is not None or any(placement == near.placement for placement, _ in thought.links)
    return Evolution(
        key=other.key,
        cluster=memory.cluster or 0,
        cause=memory.key,
        context=update.context if update else None,
        evolved_tags=update.tags or None if update else None,
        add_links=back,
        superseded_by=memory.memory_id if replaced else None,
        annotated_by=AnnotationSource.SLM if update else None,
        model=thought.model if by_slm else "",
    )


def _replaced_by(memory: Memory, linked: Sequence[tuple[Neighbour, Sequence[Link]]]) -> str | None:
    """Return the newer memory that a late one gives way to: it was rewritten after that one had evolved."""
    newer = (
        near.memory
        for near, links in linked
        if _contradicts(links) and is_newer(near.memory, memory) and gives_way(memory, near.memory)
    )
    latest = max(newer, key=lambda other: (other.event_time_ns, other.key), default=None)
    return None if latest is None else latest.memory_id


def _contradicts(links: Sequence[Link]) -> bool:
    return any(link.kind is LinkKind.CONTRADICTS for link in links)
