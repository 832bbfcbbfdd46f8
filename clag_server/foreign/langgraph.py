"""LangGraph stores: items of `BaseStore.search`, each `{namespace, key, value, created_at, updated_at}`.

A value is any object. Its text is where memories usually keep it (`content`, `text`, `memory`, ...; also one level
down, as in `{"kind": "Memory", "content": {"content": "..."}}`), else the whole object as JSON. The namespace and
the value's other fields become attributes. A row of the store's table has `prefix` for the namespace.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from clag.v1 import admin_service_pb2 as pb
from clag.v1 import types_pb2

from clag_server.foreign.drafts import BadRow, attributes, fields_of, memory_id, record, time_of
from clag_server.foreign.reading import Value

__all__ = ["record_of"]

_TEXTS: Final = ("content", "text", "memory", "data", "fact", "value")


def record_of(row: Value) -> pb.ExportRecord | None:
    """Return the memory of an item. Raises BadRow."""
    fields = fields_of(row.value)
    key = fields.get("key")
    if not isinstance(key, str) or not key:
        raise BadRow("key: must be a text")
    value = fields.get("value")
    if value is None:
        raise BadRow("value: there is none")
    space = _namespace(fields)
    text, rest = _text(value)
    known = attributes(rest)
    known.update(attributes({"namespace": "/".join(space)} if space else {}))
    return record(
        memory_id=memory_id("langgraph", *space, key),
        text=text,
        kind=types_pb2.MEMORY_KIND_UNSPECIFIED,
        attributes=known,
        created=time_of(fields, "created_at"),
        updated=time_of(fields, "updated_at"),
    )


def _namespace(fields: Mapping[str, Any]) -> list[str]:
    space = fields.get("namespace", fields.get("prefix"))
    if space is None:
        return []
    if isinstance(space, str):
        return [part for part in space.split(".") if part]
    if isinstance(space, list) and all(isinstance(part, str) for part in space):
        return space
    raise BadRow("namespace: must be a list of texts")


def _text(value: object) -> tuple[str, Mapping[str, Any]]:
    """Return the text of a value, and the fields beside it."""
    if isinstance(value, str) and value.strip():
        return value, {}
    if isinstance(value, dict):
        for name in _TEXTS:
            inner = value.get(name)
            rest = {key: other for key, other in value.items() if key != name}
            if isinstance(inner, str) and inner.strip():
                return inner, rest
            if isinstance(inner, dict):
                text, beside = _text(inner)
                return text, {**beside, **rest}
    if not value:
        raise BadRow("value: is empty")
    return json.dumps(value, ensure_ascii=False), {}
