"""Profiles of clusters: title, summary, tags, representatives, in the memories' own words.

Class-based TF-IDF names what distinguishes the cluster from the rest of the namespace, and the member nearest the
centroid speaks for it. Nothing is invented, so nothing of a prompt can leak in, and the language is that of the
memories. Where the SLM is trusted with annotation, its checked draft (`profile_answers`) goes first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from clag_server.catalog.api import Catalog, EpisodeMembers
from clag_server.memory.cluster_map import ClusterMap
from clag_server.memory.profile_answers import ProfileDraft
from clag_server.memory.terms import characteristic, term_candidates, written
from clag_server.types.cluster import Cluster, ClusterField
from clag_server.types.memory import AnnotationSource, Memory, Vector

_SAMPLE = 120
_REPRESENTATIVES = 3
_TITLE_TERMS = 3
_TAGS = 8
_SUMMARY_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Sample:
    """What a profile is made from: sampled members (for the words) and the representatives among all members."""

    memories: Sequence[Memory]
    representatives: Sequence[Memory]


def due(cluster: Cluster) -> bool:
    """Return whether so much changed that the profile should be written again.

    A third more memories are enough where that costs nothing, twice as many where an SLM writes it.
    """
    if cluster.memory_count == 0:
        return False
    grown = cluster.memory_count - cluster.profile_count
    share = 1.0 if cluster.profiled_by is AnnotationSource.SLM else 0.3
    return cluster.profile_stale or grown > 2 + share * cluster.profile_count


def blank(cluster: Cluster) -> Cluster:
    """Return the cluster without what was written from its memories' words; a client's own words stay."""
    kept = cluster.client_fields
    return replace(
        cluster,
        title=cluster.title if ClusterField.TITLE in kept else "",
        summary=cluster.summary if ClusterField.SUMMARY in kept else "",
        tags=cluster.tags if ClusterField.TAGS in kept else (),
        representatives=(),
        profile_count=0,
    )


async def sample(catalog: Catalog, ns: int, cluster_map: ClusterMap, number: int) -> Sample:
    """Read at most `_SAMPLE` members evenly over time, and the members nearest the centroid."""
    centroid = cluster_map.centroid(number)
    episodes = sorted(cluster_map.cluster_episodes.get(number, ()))
    members = await catalog.episode_members(ns, episodes)
    nearest = _nearest(members, centroid)
    step = max(1, -(-len(members.keys) // _SAMPLE))
    keys = [int(key) for key in members.keys[::step]]
    memories = await catalog.memories(ns, keys)
    return Sample(memories, await catalog.memories(ns, nearest))


async def profile(
    catalog: Catalog,
    ns: int,
    cluster: Cluster,
    members: Sample,
    taken_titles: Collection[str],
    *,
    now_ns: int,
    draft: ProfileDraft | None = None,
) -> Cluster:
    """Return the cluster with a fresh profile; its title differs from all `taken_titles`.

    What a client wrote stays as it is. What an SLM's draft lacks, or whose title another cluster took meanwhile, is
    written without it.
    """
    draft = draft if draft is not None and draft.title not in taken_titles else ProfileDraft()
    texts = [memory.text for memory in members.memories]
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(set(term_candidates(text)))
    frequency, documents = await catalog.document_frequency(ns, list(counts))
    # A term that only one memory of a larger cluster has says little about the cluster.
    common = {term: n for term, n in counts.items() if n > 1} if len(texts) > 3 else dict(counts)
    terms = characteristic(common or counts, len(texts), frequency, documents, limit=4 * _TAGS)
    words = written(terms, texts, limit=2 * _TAGS)
    written_by_client = cluster.client_fields
    return replace(
        cluster,
        title=cluster.title
        if ClusterField.TITLE in written_by_client
        else draft.title or _title(words, members, cluster.cluster, taken_titles),
        summary=cluster.summary
        if ClusterField.SUMMARY in written_by_client
        else draft.summary or _summary(members),
        tags=cluster.tags if ClusterField.TAGS in written_by_client else draft.tags or words[:_TAGS],
        profiled_by=AnnotationSource.SLM if draft.title else AnnotationSource.STATISTICS,
        representatives=tuple(memory.key for memory in members.representatives),
        profile_stale=False,
        profile_count=cluster.memory_count,
        update_time_ns=now_ns,
    )


def _nearest(members: EpisodeMembers, centroid: Vector) -> list[int]:
    if len(members.keys) == 0:
        return []
    order = np.lexsort((members.keys, -(members.vectors @ centroid)))[:_REPRESENTATIVES]
    return [int(members.keys[i]) for i in order]


def _title(words: Sequence[str], members: Sample, number: int, taken: Collection[str]) -> str:
    """Join the most distinctive words; more of them, then the number, until no other cluster has the title."""
    if not words:
        words = [_clip(members.memories[0].text, 40)] if members.memories else []
    for count in range(min(_TITLE_TERMS, len(words)), len(words) + 1):
        title = ", ".join(words[:count])
        if title and title not in taken and count <= _TITLE_TERMS + 2:
            return title
    return ", ".join([*words[:_TITLE_TERMS], f"c{number}"])


def _summary(members: Sample) -> str:
    return _clip(members.representatives[0].text, _SUMMARY_CHARACTERS) if members.representatives else ""


def _clip(text: str, characters: int) -> str:
    """Return the beginning of a text on one line."""
    line = " ".join(text.split())
    return line if len(line) <= characters else line[: characters - 1].rstrip() + "…"
