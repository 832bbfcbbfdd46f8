"""An imported memory as the columns of its row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import sqlalchemy as sa

from clag_server.catalog.import_book import CLUSTER, ImportBook
from clag_server.catalog.rows import (
    NO_ITEMS,
    attributes_from_json,
    attributes_to_json,
    links_to_json,
    routing_to_json,
    strings_to_json,
    vector_to_blob,
)
from clag_server.types.memory import AnnotationSource, AttributeValue, Memory, RoutingDecision, Vector

_CONTENT: Final = (
    "text",
    "kind",
    "task",
    "speaker",
    "session_id",
    "tags",
    "attributes",
    "importance",
    "supersedes",
)
_TIMES: Final = {"event_time_ns": "event_time", "expire_time_ns": "expire_time"}


def memory_row(ns: int, values: Mapping[str, Any], *, revision: int) -> tuple[Any, ...]:
    """Return the columns of `memories`, in order.

    Args:
        ns: The namespace.
        values: The imported memory, and what the import decided on it.
        revision: Of the write.
    """
    memory: Memory = values["memory"]
    kept = _without_itself(memory) if values["keep"] else _bare(memory)
    embedding = values["embedding"]
    routing = values["routing"]
    now_ns = values["now_ns"]
    return (
        values["key"], ns, memory.memory_id, int(values["state"]), memory.text, int(memory.kind), memory.task,
        memory.speaker, memory.session_id, values["position"], strings_to_json(memory.tags),
        attributes_to_json(memory.attributes), memory.importance, kept.confidence, memory.event_time_ns,
        memory.create_time_ns, memory.update_time_ns if values["keep"] else now_ns, values["expire_time_ns"],
        kept.context, strings_to_json(kept.keywords), strings_to_json(kept.evolved_tags), int(kept.annotated_by),
        links_to_json(kept.links) if kept.links else NO_ITEMS, values["cluster"], values["episode"],
        values["placement_id"], None if routing is None else routing_to_json(routing),
        strings_to_json(memory.supersedes), kept.superseded_by, memory.access_count, memory.last_access_time_ns,
        revision, "", memory.client_embedding and embedding is not None,
        None if embedding is None else vector_to_blob(embedding),
    )  # fmt: skip


def old_values(before: sa.Row[*tuple[Any, ...]], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what history keeps of a memory that is replaced: client fields that differ, by their names there."""
    memory: Memory = values["memory"]
    new = {
        "text": memory.text,
        "kind": int(memory.kind),
        "task": memory.task,
        "speaker": memory.speaker,
        "session_id": memory.session_id,
        "tags": strings_to_json(memory.tags),
        "attributes": attributes_to_json(memory.attributes),
        "importance": memory.importance,
        "supersedes": strings_to_json(memory.supersedes),
        "event_time_ns": memory.event_time_ns,
        "expire_time_ns": values["expire_time_ns"],
    }
    row = before._mapping  # noqa: SLF001  # SQLAlchemy's public name for it
    changed = [name for name in (*_CONTENT, *_TIMES) if row[name] != new[name]]
    if "attributes" in changed and _in_order(attributes_from_json(row["attributes"])) == _in_order(
        memory.attributes
    ):
        changed.remove("attributes")  # their order is nobody's, and a message does not keep it
    return {_TIMES.get(name, name): row[name] for name in changed}


def says_the_same(
    before: sa.Row[*tuple[Any, ...]], memory: Memory, embedding: Vector | None, *, expires_by_default: bool
) -> bool:
    """Whether a row has nothing new for the memory that is there, what organizing made of it aside.

    Args:
        before: The memory that is there, all columns.
        memory: The row.
        embedding: The row's embedding in our space; None says nothing, unless a client gave it.
        expires_by_default: Whether a row without a time of expiry would get one: it leaves that which is there.
    """
    expires = memory.expire_time_ns
    if expires is None and expires_by_default:
        expires = before.expire_time_ns
    if memory.client_embedding != bool(before.client_embedding):
        return False
    if memory.client_embedding and embedding is not None and vector_to_blob(embedding) != before.embedding:
        return False
    same_age: bool = before.create_time_ns == memory.create_time_ns
    return same_age and not old_values(before, {"memory": memory, "expire_time_ns": expires})


def mapped_routing(routing: RoutingDecision | None, numbers: ImportBook) -> RoutingDecision | None:
    """Return a decision that names our clusters; candidates that were not imported are left out.

    A provisional decision becomes a final one: imported episodes are closed.
    """
    if routing is None:
        return None
    candidates = tuple(
        replace(candidate, cluster=number)
        for candidate in routing.candidates
        if (number := numbers.get(CLUSTER, f"c{candidate.cluster}")) is not None
    )
    vote = None if routing.vote is None else numbers.get(CLUSTER, f"c{routing.vote}")
    return replace(routing, candidates=candidates, vote=vote, provisional=False, awaits_slm=False)


def _without_itself(memory: Memory) -> Memory:
    """Return a memory without links to itself, which would lead nowhere."""
    links = tuple(link for link in memory.links if link.memory_id != memory.memory_id)
    return memory if len(links) == len(memory.links) else replace(memory, links=links)


def _in_order(attributes: Mapping[str, AttributeValue]) -> str:
    """Return attributes by name, as a text in which 1, 1.0 and true are three things."""
    return attributes_to_json(dict(sorted(attributes.items())))


def _bare(memory: Memory) -> Memory:
    """Return a memory without what organizing made of it."""
    return replace(
        memory,
        confidence=1.0,
        context="",
        keywords=(),
        evolved_tags=(),
        annotated_by=AnnotationSource.NONE,
        links=(),
        superseded_by="",
    )
