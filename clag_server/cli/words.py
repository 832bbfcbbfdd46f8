"""Values of the contract in words: enums without their prefix, times, attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clag.v1 import types_pb2
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from clag_server.cli.messages import seconds
from clag_server.cli.safe import one_line

__all__ = ["attribute", "date", "enum_word", "milliseconds", "moment"]

_MISSING = "-"


def enum_word(name_of: Callable[[Any], str], number: int) -> str:
    """The name of an enum's value in lower case without the enum's name; "-" for the unspecified one.

    Args:
        name_of: The enum's `Name`.
        number: The value; one of a newer server that is not known here is shown as it is.
    """
    if number == 0:
        return _MISSING
    try:
        name = name_of(number)
    except ValueError:
        return str(number)
    return name.removeprefix(name_of(0).removesuffix("UNSPECIFIED")).lower().replace("_", " ")


def moment(time: Timestamp) -> str:
    """A time in UTC to the second, or "-" for none."""
    return time.ToJsonString()[:19].replace("T", " ") if time.seconds or time.nanos else _MISSING


def date(time: Timestamp) -> str:
    """The date of a time in UTC, or "-" for none."""
    return moment(time)[:10]


def milliseconds(duration: Duration) -> str:
    """A duration in milliseconds."""
    return f"{seconds(duration) * 1e3:,.1f} ms"


def attribute(value: types_pb2.AttributeValue) -> str:
    """An attribute's value, made safe for a terminal."""
    match value.WhichOneof("value"):
        case "string_value":
            return one_line(value.string_value)
        case "int_value":
            return str(value.int_value)
        case "double_value":
            return f"{value.double_value:g}"
        case "bool_value":
            return str(value.bool_value).lower()
        case "string_list":
            return "[" + ", ".join(one_line(entry) for entry in value.string_list.values) + "]"
        case _:
            return _MISSING
