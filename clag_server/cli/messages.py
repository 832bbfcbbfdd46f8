"""Messages of the contract as plain JSON values.

Unlike protobuf's own JSON form, 64-bit integers are numbers (jq can add them) and durations are seconds. Names of
fields and enum values are those of the `.proto` files; a field that is not set is left out when it has presence, so
"unset" and "zero" stay apart.
"""

from __future__ import annotations

import math
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

__all__ = ["as_json", "seconds"]


def as_json(message: Message) -> dict[str, object]:
    """Convert a message: names to numbers, strings, truth values, lists and objects.

    Times are RFC 3339 in UTC, durations seconds, floats are rounded to the 7 digits that a single holds.
    """
    return {
        field.name: _field(message, field)
        for field in message.DESCRIPTOR.fields
        if not field.has_presence or message.HasField(field.name)
    }


def seconds(duration: Duration) -> float:
    """A duration in seconds."""
    return duration.seconds + duration.nanos / 1e9


def _field(message: Message, field: Any) -> object:
    value = getattr(message, field.name)
    if not field.is_repeated:
        return _single(field, value)
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        of_value = entry.fields_by_name["value"]
        return {str(key): _single(of_value, value[key]) for key in sorted(value)}
    return [_single(field, item) for item in value]


def _single(field: FieldDescriptor, value: Any) -> object:
    if isinstance(value, Timestamp):
        return value.ToJsonString()
    if isinstance(value, Duration):
        return seconds(value)
    if isinstance(value, Message):
        return as_json(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            return None  # JSON has no such number
        return float(f"{value:.7g}") if field.type == FieldDescriptor.TYPE_FLOAT else value
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else value
    return value
