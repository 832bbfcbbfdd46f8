"""Rows to values and back: JSON texts, vectors, and the order of the columns of a memory.

JSON is compact and not ASCII-escaped: SQLite reads it in filters and compares array texts, so one value must always
have one text. It is written by pydantic's encoder, five times faster than the standard library's, whose share of
storing a memory was a third. Vectors are float32, little-endian, without a header.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pydantic_core
import sqlalchemy as sa

from clag_server.catalog.api import EmbedderPin, Namespace
from clag_server.catalog.schema import clusters, episodes, memories
from clag_server.catalog.settings_json import settings_from_json
from clag_server.types.cluster import Cluster, ClusterField, ClusterState, Episode
from clag_server.types.memory import (
    AnnotationSource,
    AttributeValue,
    DecidedBy,
    FallbackCause,
    Link,
    LinkKind,
    Memory,
    MemoryKind,
    MemoryState,
    RoutingCandidate,
    RoutingDecision,
    Vector,
)

NO_ITEMS: Final = "[]"
NO_ATTRIBUTES: Final = "{}"

MEMORY_COLUMNS: Final[tuple[sa.ColumnElement[Any], ...]] = (
    *(column for column in memories.c if column.name not in {"ns", "placement_id", "embedding"}),
    memories.c.embedding.is_not(None).label("has_embedding"),
)
"""What a `Memory` is read from; `memory_from_row` takes them in this order, the embedding last where asked."""

CLUSTER_COLUMNS: Final = tuple(column for column in clusters.c if column.name != "ns")
EPISODE_COLUMNS: Final = tuple(column for column in episodes.c if column.name != "ns")


def to_json(value: object) -> str:
    """Return the one JSON text of a value.

    Raises:
        ValueError: a string is no valid Unicode.
    """
    return pydantic_core.to_json(value).decode()


def strings_to_json(values: Sequence[str]) -> str:
    """Return a JSON array of strings."""
    return to_json(values) if values else NO_ITEMS


def strings_from_json(text: str) -> tuple[str, ...]:
    """Return the strings of a JSON array."""
    return () if text == NO_ITEMS else tuple(json.loads(text))


def attributes_to_json(attributes: Mapping[str, AttributeValue]) -> str:
    """Return a JSON object in which each value keeps its type (1, 1.0 and true are three things).

    Raises:
        ValueError: a number is not finite (SQLite could not read the text), or a string is no valid Unicode.
    """
    if not attributes:
        return NO_ATTRIBUTES
    for value in attributes.values():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("a number is not finite")
    return to_json(dict(attributes))


def attributes_from_json(text: str) -> dict[str, AttributeValue]:
    """Return typed attributes; arrays become tuples."""
    if text == NO_ATTRIBUTES:
        return {}
    return {key: tuple(value) if isinstance(value, list) else value for key, value in json.loads(text).items()}


def vector_to_blob(vector: Vector) -> bytes:
    """Return float32 little-endian bytes of a vector (dim,)."""
    return np.asarray(vector, dtype="<f4").tobytes()


def vector_from_blob(blob: bytes) -> Vector:
    """Return a read-only vector (dim,) over the bytes."""
    return np.frombuffer(blob, dtype=np.float32)


def links_to_json(links: Sequence[Link]) -> str:
    """Return a JSON array of [memory id, kind, reason, similarity]."""
    return to_json([[link.memory_id, int(link.kind), link.reason, link.similarity] for link in links])


def links_from_json(text: str) -> tuple[Link, ...]:
    """Return the links of a memory."""
    if text == NO_ITEMS:
        return ()
    return tuple(Link(memory_id, LinkKind(kind), *rest) for memory_id, kind, *rest in json.loads(text))


def routing_to_json(routing: RoutingDecision) -> str:
    """Return a JSON object with the fields of the decision; candidates are arrays in the order of their fields."""
    return to_json(
        {
            "decided_by": int(routing.decided_by),
            "candidates": [[c.cluster, c.title, c.cosine, c.channel, c.combined] for c in routing.candidates],
            "vote": routing.vote,
            "reason": routing.reason,
            "provisional": routing.provisional,
            "time_ns": routing.time_ns,
            "founded": routing.founded,
            "fallback": int(routing.fallback),
            "slm_weight": routing.slm_weight,
            "awaits_slm": routing.awaits_slm,
            "evolve_again": routing.evolve_again,
        }
    )


def routing_from_json(text: str | None) -> RoutingDecision | None:
    """Return the decision, None for a memory that has none yet."""
    if text is None:
        return None
    values = json.loads(text)
    return RoutingDecision(
        decided_by=DecidedBy(values["decided_by"]),
        candidates=tuple(RoutingCandidate(*candidate) for candidate in values["candidates"]),
        vote=values["vote"],
        reason=values["reason"],
        provisional=values["provisional"],
        time_ns=values["time_ns"],
        founded=values["founded"],
        fallback=FallbackCause(values["fallback"]),
        slm_weight=values["slm_weight"],
        awaits_slm=values.get("awaits_slm", False),  # schema 0003 knew no such decisions
        evolve_again=values.get("evolve_again", False),  # nor was any memory evolved twice
    )


def memory_from_row(row: Sequence[Any]) -> Memory:
    """Return a memory from `MEMORY_COLUMNS`, with its embedding where that follows them."""
    (
        key, memory_id, state, text, kind, task, speaker, session_id, session_position, tags, attributes,
        importance, confidence, event_time_ns, create_time_ns, update_time_ns, expire_time_ns, context, keywords,
        evolved_tags, annotated_by, links, cluster, episode, routing, supersedes, superseded_by, access_count,
        last_access_time_ns, revision, error, client_embedding, has_embedding, *rest,
    ) = row  # fmt: skip
    embedding = rest[0] if rest else None
    return Memory(
        key=key,
        memory_id=memory_id,
        text=text,
        kind=MemoryKind(kind),
        task=task,
        speaker=speaker,
        session_id=session_id,
        session_position=session_position,
        tags=strings_from_json(tags),
        attributes=attributes_from_json(attributes),
        importance=importance,
        confidence=confidence,
        event_time_ns=event_time_ns,
        create_time_ns=create_time_ns,
        update_time_ns=update_time_ns,
        expire_time_ns=expire_time_ns,
        context=context,
        keywords=strings_from_json(keywords),
        evolved_tags=strings_from_json(evolved_tags),
        links=links_from_json(links),
        cluster=cluster,
        episode=episode,
        state=MemoryState(state),
        routing=routing_from_json(routing),
        supersedes=strings_from_json(supersedes),
        superseded_by=superseded_by,
        access_count=access_count,
        last_access_time_ns=last_access_time_ns,
        revision=revision,
        error=error,
        has_embedding=bool(has_embedding),
        embedding=None if embedding is None else vector_from_blob(embedding),
        client_embedding=bool(client_embedding),
        annotated_by=AnnotationSource(annotated_by),
    )


def cluster_to_values(ns: int, cluster: Cluster, *, revision: int) -> dict[str, Any]:
    """Return a row of `clusters`, by column name."""
    return {
        "ns": ns,
        "cluster": cluster.cluster,
        "title": cluster.title,
        "summary": cluster.summary,
        "tags": strings_to_json(cluster.tags),
        "representatives": to_json(list(cluster.representatives)),
        "closed_episodes": cluster.closed_episodes,
        "memory_count": cluster.memory_count,
        "state": int(cluster.state),
        "pinned": cluster.pinned,
        "profile_stale": cluster.profile_stale,
        "profile_count": cluster.profile_count,
        "create_time_ns": cluster.create_time_ns,
        "update_time_ns": cluster.update_time_ns,
        "revision": revision,
        "vector_sum": vector_to_blob(cluster.vector_sum),
        "client_fields": strings_to_json(sorted(cluster.client_fields)),
        "profiled_by": int(cluster.profiled_by),
    }


def cluster_from_row(row: sa.Row[*tuple[Any, ...]]) -> Cluster:
    """Return a cluster from `CLUSTER_COLUMNS`."""
    return Cluster(
        cluster=row.cluster,
        title=row.title,
        summary=row.summary,
        tags=strings_from_json(row.tags),
        representatives=tuple(json.loads(row.representatives)),
        vector_sum=vector_from_blob(row.vector_sum),
        closed_episodes=row.closed_episodes,
        memory_count=row.memory_count,
        state=ClusterState(row.state),
        pinned=bool(row.pinned),
        profile_stale=bool(row.profile_stale),
        profile_count=row.profile_count,
        create_time_ns=row.create_time_ns,
        update_time_ns=row.update_time_ns,
        revision=row.revision,
        client_fields=frozenset(ClusterField(name) for name in strings_from_json(row.client_fields)),
        profiled_by=AnnotationSource(row.profiled_by),
    )


def episode_to_values(ns: int, episode: Episode) -> dict[str, Any]:
    """Return a row of `episodes`, by column name."""
    return {
        "ns": ns,
        "episode": episode.episode,
        "session_id": episode.session_id,
        "cluster": episode.cluster,
        "memory_count": episode.memory_count,
        "first_position": episode.first_position,
        "last_position": episode.last_position,
        "open": episode.open,
        "last_time_ns": episode.last_time_ns,
        "vector_sum": vector_to_blob(episode.vector_sum),
    }


def episode_from_row(row: sa.Row[*tuple[Any, ...]]) -> Episode:
    """Return an episode from `EPISODE_COLUMNS`."""
    return Episode(
        episode=row.episode,
        session_id=row.session_id,
        cluster=row.cluster,
        vector_sum=vector_from_blob(row.vector_sum),
        memory_count=row.memory_count,
        first_position=row.first_position,
        last_position=row.last_position,
        open=bool(row.open),
        last_time_ns=row.last_time_ns,
    )


def namespace_from_row(row: sa.Row[*tuple[Any, ...]]) -> Namespace:
    """Return a namespace from a row of `namespaces`."""
    return Namespace(
        ns=row.ns,
        name=row.name,
        embedder=EmbedderPin(row.embedder_name, row.embedder_fingerprint, row.embedder_dim),
        create_time_ns=row.create_time_ns,
        next_cluster=row.next_cluster,
        next_episode=row.next_episode,
        settings=settings_from_json(row.settings),
        update_time_ns=row.update_time_ns,
        revision=row.revision,
        deleting=bool(row.deleting),
    )
