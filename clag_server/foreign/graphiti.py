"""Graphiti: episodes, entity edges (facts) and entities, as its database's JSON exports give them.

Rows are told apart by the list that they are in ("episodes", "edges", "nodes"), else by their fields; rows of
`apoc.export.json` (`{"type": "node", "labels": [...], "properties": {...}}`) are unpacked. Episodes become messages
or observations of the session that their group is, facts and summaries of entities become FACTs; edges that only
connect, and entities without a summary, are no memories.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from clag.v1 import admin_service_pb2 as pb
from clag.v1 import types_pb2

from clag_server.foreign.drafts import attributes, fields_of, memory_id, record, text_of, time_of
from clag_server.foreign.reading import Value

__all__ = ["record_of"]

_COMMON: Final = ("uuid", "created_at", "valid_at", "labels", "type", "label", "attributes")
_EMBEDDINGS: Final = ("fact_embedding", "name_embedding", "embedding")


def record_of(row: Value) -> pb.ExportRecord | None:
    """Return the memory of a row; None for what is no memory. Raises BadRow."""
    fields = _unpacked(fields_of(row.value))
    if row.section.startswith("episod") or ("content" in fields and "fact" not in fields):
        return _episode(fields)
    if "fact" in fields:
        return _fact(fields)
    if fields.get("summary"):
        return _entity(fields)
    if row.section in ("edges", "nodes") or "uuid" in fields:
        return None
    return _episode(fields)  # says what is missing


def _unpacked(row: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = row.get("properties")
    if not isinstance(properties, dict):
        return row
    return {"labels": row.get("labels", []), **properties}


def _episode(fields: Mapping[str, Any]) -> pb.ExportRecord:
    text = text_of(fields, "content")
    message = str(fields.get("source", "")).rpartition(".")[2].lower() == "message"
    taken = (*_COMMON, *_EMBEDDINGS, "content", "group_id", "entity_edges")
    return record(
        memory_id=memory_id("graphiti", fields.get("uuid") or text),
        text=text,
        kind=types_pb2.MEMORY_KIND_MESSAGE if message else types_pb2.MEMORY_KIND_OBSERVATION,
        attributes=attributes(fields, without=taken),
        created=time_of(fields, "created_at"),
        happened=time_of(fields, "valid_at", "created_at"),
        session_id=_word(fields.get("group_id")),
    )


def _fact(fields: Mapping[str, Any]) -> pb.ExportRecord:
    text = text_of(fields, "fact")
    extra = fields.get("attributes")
    known = attributes(extra if isinstance(extra, dict) else {})
    known.update(attributes(fields, without=(*_COMMON, *_EMBEDDINGS, "fact")))
    return record(
        memory_id=memory_id("graphiti", fields.get("uuid") or text),
        text=text,
        kind=types_pb2.MEMORY_KIND_FACT,
        attributes=known,
        created=time_of(fields, "created_at"),
        happened=time_of(fields, "valid_at", "created_at"),
        tags=[fields.get("name")],
    )


def _entity(fields: Mapping[str, Any]) -> pb.ExportRecord:
    name, summary = _word(fields.get("name")), text_of(fields, "summary")
    labels = fields.get("labels")
    return record(
        memory_id=memory_id("graphiti", fields.get("uuid") or name or summary),
        text=f"{name}: {summary}" if name else summary,
        kind=types_pb2.MEMORY_KIND_FACT,
        attributes=attributes(fields, without=(*_COMMON, *_EMBEDDINGS, "summary")),
        created=time_of(fields, "created_at"),
        tags=[label for label in labels if label != "Entity"] if isinstance(labels, list) else (),
    )


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""
