"""Making a memory of loosely typed fields: ids, times, attributes that fit the contract."""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from clag.v1 import admin_service_pb2 as pb
from clag.v1 import types_pb2
from google.protobuf.timestamp_pb2 import Timestamp

__all__ = ["BadRow", "attributes", "fields_of", "memory_id", "record", "text_of", "time_of"]

_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_FRACTION: Final = re.compile(r"(\.\d{6})\d+")
_MAX_ATTRIBUTES: Final = 64
_MAX_KEY_BYTES: Final = 64
_MAX_VALUE_BYTES: Final = 1_024
_MAX_TAG_BYTES: Final = 64
_MAX_TAGS: Final = 32
_INT64: Final = 1 << 63
_MILLISECONDS: Final = 100_000_000_000
"""Numbers of this size and more are milliseconds since 1970: as seconds they would lie after the year 5000."""


class BadRow(ValueError):
    """A row that is no memory; the text says why, with the field."""


def fields_of(value: object) -> Mapping[str, Any]:
    """Return a row as an object. Raises BadRow."""
    if not isinstance(value, dict):
        raise BadRow("is not an object")
    return value


def text_of(fields: Mapping[str, Any], *names: str) -> str:
    """Return the first of the fields that holds a text; raises BadRow when none does."""
    for name in names:
        value = fields.get(name)
        if isinstance(value, str) and value.strip():
            return value
    raise BadRow(f"{names[0]}: there is no text")


def memory_id(system: str, *parts: object) -> str:
    """Return an id for what is known by `parts` there: itself where it fits, else a digest that stays the same."""
    joined = ":".join(str(part) for part in parts)
    if _ID.fullmatch(joined):
        return joined
    return f"{system}:{hashlib.sha256(joined.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"


def time_of(fields: Mapping[str, Any], *names: str) -> Timestamp | None:
    """Return the first of the fields that is set, as an instant.

    ISO 8601 (without a zone: UTC), or a number of seconds or milliseconds since 1970. Raises BadRow.
    """
    for name in names:
        value = fields.get(name)
        if value is None or value == "":
            continue
        try:
            return _instant(value)
        except (ValueError, OverflowError, TypeError):
            raise BadRow(f"{name}: is not a time") from None
    return None


def attributes(fields: Mapping[str, Any], *, without: Iterable[str] = ()) -> dict[str, types_pb2.AttributeValue]:
    """Return scalar fields and lists of texts as typed attributes.

    Objects become JSON texts. What has no place in an attribute (too long, empty, beyond the 64th) is left out.
    """
    found: dict[str, types_pb2.AttributeValue] = {}
    skipped = set(without)
    for key, value in fields.items():
        if key in skipped or value is None or not 0 < len(key.encode()) <= _MAX_KEY_BYTES or "\x00" in key:
            continue
        typed = _attribute(value)
        if typed is not None and len(found) < _MAX_ATTRIBUTES:
            found[key] = typed
    return found


def record(
    *,
    memory_id: str,
    text: str,
    kind: types_pb2.MemoryKind.ValueType,
    attributes: Mapping[str, types_pb2.AttributeValue],
    created: Timestamp | None = None,
    updated: Timestamp | None = None,
    happened: Timestamp | None = None,
    expires: Timestamp | None = None,
    speaker: str = "",
    session_id: str = "",
    tags: Iterable[object] = (),
) -> pb.ExportRecord:
    """Return the record of a memory; the importance is the server's default."""
    kept = dict.fromkeys(tag for tag in tags if isinstance(tag, str) and 0 < len(tag.encode()) <= _MAX_TAG_BYTES)
    memory = types_pb2.Memory(
        memory_id=memory_id,
        text=text,
        kind=kind,
        speaker=speaker,
        session_id=session_id,
        tags=list(kept)[:_MAX_TAGS],
        importance=0.5,
        event_time=happened or created,
        create_time=created,
        update_time=updated,
        expire_time=expires,
        confidence=1.0,
    )
    for key, value in attributes.items():
        memory.attributes[key].CopyFrom(value)
    return pb.ExportRecord(memory=memory)


def _instant(value: object) -> Timestamp:
    if isinstance(value, bool):
        raise TypeError
    if isinstance(value, (int, float)):
        seconds = value / 1000 if abs(value) >= _MILLISECONDS else value
        moment = datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC)
    elif isinstance(value, str):
        plain = _FRACTION.sub(r"\1", value.strip().partition("[")[0])  # databases write "…Z[UTC]" and nanoseconds
        moment = datetime.datetime.fromisoformat(plain)
    else:
        raise TypeError
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp


def _attribute(value: object) -> types_pb2.AttributeValue | None:
    match value:
        case bool():
            return types_pb2.AttributeValue(bool_value=value)
        case int() if -_INT64 <= value < _INT64:
            return types_pb2.AttributeValue(int_value=value)
        case float() if math.isfinite(value):
            return types_pb2.AttributeValue(double_value=value)
        case str():
            return types_pb2.AttributeValue(string_value=value) if _fits(value) else None
        case list() if (
            value and len(value) <= _MAX_ATTRIBUTES and all(isinstance(v, str) and _fits(v) for v in value)
        ):
            return types_pb2.AttributeValue(string_list=types_pb2.StringList(values=value))
        case dict() | list() if value:
            return _attribute(json.dumps(value, ensure_ascii=False))
        case _:
            return None


def _fits(text: str) -> bool:
    return len(text.encode("utf-8", "surrogatepass")) <= _MAX_VALUE_BYTES and "\x00" not in text
