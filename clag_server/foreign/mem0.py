"""mem0: what `Memory.get_all` and the platform's memory exports give, `{"results": [...]}` or a plain list.

A memory there is a short statement, so it becomes a FACT. Who it is about (user, agent) and its metadata become
attributes, a run becomes a session, categories become tags. Relations of its graph are no memories.
"""

from __future__ import annotations

from typing import Final

from clag.v1 import admin_service_pb2 as pb
from clag.v1 import types_pb2

from clag_server.foreign.drafts import attributes, fields_of, memory_id, record, text_of, time_of
from clag_server.foreign.reading import Value

__all__ = ["record_of"]

_TEXTS: Final = ("memory", "data", "text", "content")
_TAKEN: Final = (
    *_TEXTS, "id", "hash", "metadata", "created_at", "updated_at", "expiration_date", "run_id", "actor_id", "role",
    "categories", "score", "embedding", "vector", "text_lemmatized",
)  # fmt: skip


def record_of(row: Value) -> pb.ExportRecord | None:
    """Return the memory of a row. Raises BadRow."""
    if row.section == "relations":
        return None
    fields = fields_of(row.value)
    text = text_of(fields, *_TEXTS)
    metadata = fields.get("metadata")
    categories = fields.get("categories")
    known = attributes(metadata if isinstance(metadata, dict) else {})
    known.update(attributes(fields, without=_TAKEN))
    return record(
        memory_id=memory_id("mem0", fields.get("id") or text),
        text=text,
        kind=types_pb2.MEMORY_KIND_FACT,
        attributes=known,
        created=time_of(fields, "created_at"),
        updated=time_of(fields, "updated_at"),
        expires=time_of(fields, "expiration_date"),
        speaker=_word(fields.get("actor_id")) or _word(fields.get("role")),
        session_id=_word(fields.get("run_id")),
        tags=categories if isinstance(categories, list) else (),
    )


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""
