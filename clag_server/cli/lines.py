"""JSON Lines of memories: reading them from a file or a pipe, and turning each into a message of the contract.

The form is that of examples/warehouse_robot/README.md. Item n of a stream is the n-th line that is not blank, good
or bad, so that a sequence number means the same line whenever the file is read again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NoReturn

from clag.v1 import types_pb2
from google.protobuf.timestamp_pb2 import Timestamp

__all__ = ["MAX_LINE_BYTES", "BadLine", "Line", "parse_line", "read_lines"]

MAX_LINE_BYTES = 512 * 1024
"""Longest line. Its memory must fit in a frame of 1 MiB, and a file without line breaks must not fill ours."""

_STRINGS = {"id": "memory_id", "text": "text", "speaker": "speaker", "session": "session_id", "task": "task"}
_TIMES = {"time": "event_time", "expires": "expire_time"}
_KNOWN = (*_STRINGS, *_TIMES, "kind", "importance", "tags", "attributes", "supersedes")
_KINDS = {
    name.removeprefix("MEMORY_KIND_").lower(): number
    for name, number in types_pb2.MemoryKind.items()
    if number != types_pb2.MEMORY_KIND_UNSPECIFIED
}
_INT64 = range(-(1 << 63), 1 << 63)


class BadLine(ValueError):
    """A line that is no memory.

    Attributes:
        field: The key at fault; empty for the whole line.
        reason: What is wrong with it.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.field = field
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Line:
    """One line that is not blank.

    Attributes:
        number: Its number in the file, from 1.
        seq: Its number among the lines that are not blank, from 1; the sequence number of its item.
        raw: Its bytes; None when it was longer than `MAX_LINE_BYTES`.
    """

    number: int
    seq: int
    raw: bytes | None


def read_lines(file: BinaryIO) -> Iterator[Line]:
    """Read the lines of a file one by one, as they come."""
    number = seq = 0
    while raw := file.readline(MAX_LINE_BYTES):
        number += 1
        whole = True
        while len(raw) >= MAX_LINE_BYTES and not raw.endswith(b"\n"):
            whole = False
            raw = file.readline(MAX_LINE_BYTES)
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        if whole and not raw.strip():
            continue
        seq += 1
        yield Line(number, seq, raw if whole else None)


def parse_line(line: Line) -> types_pb2.MemoryInput:
    """Turn a line into a memory.

    Rules that only the server knows (lengths, patterns) are left to it.

    Raises:
        BadLine: It is no JSON object, has an unknown key, or a value of the wrong type.
    """
    fields = _object(line)
    unknown = sorted(fields.keys() - set(_KNOWN))
    if unknown:
        raise BadLine(unknown[0][:64], f"unknown key; known are {', '.join(_KNOWN)}; others go into attributes")
    item = types_pb2.MemoryInput()
    for key, value in fields.items():
        if value is None:
            continue
        try:
            _set(item, key, value)
        except UnicodeEncodeError:
            raise BadLine(key, "is not well-formed Unicode (a lone surrogate)") from None
    if not item.text:
        raise BadLine("text", "is missing or empty")
    return item


def _object(line: Line) -> dict[str, object]:
    if line.raw is None:
        raise BadLine("", f"the line is longer than {MAX_LINE_BYTES:,} bytes")
    try:
        value = json.loads(line.raw.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_no_repeats)
    except UnicodeDecodeError as error:
        raise BadLine("", f"is not UTF-8 at byte {error.start + 1}") from None
    except json.JSONDecodeError as error:
        raise BadLine("", f"is not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise BadLine("", "is nested too deeply") from None
    except BadLine:
        raise
    except ValueError as error:  # such as an integer of 5,000 digits
        raise BadLine("", f"is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadLine("", "is not a JSON object")
    return value


def _no_constant(name: str) -> NoReturn:
    raise BadLine("", f"is not JSON: {name} is no JSON number")


def _no_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Refuse a key that comes twice: taking either value would lose the other without a word."""
    made: dict[str, object] = {}
    for key, value in pairs:
        if key in made:
            raise BadLine(key[:64], "comes twice")
        made[key] = value
    return made


def _set(item: types_pb2.MemoryInput, key: str, value: object) -> None:
    if key in _STRINGS:
        setattr(item, _STRINGS[key], _string(key, value))
    elif key in _TIMES:
        getattr(item, _TIMES[key]).CopyFrom(_time(key, value))
    elif key == "kind":
        item.kind = _kind(value)
    elif key == "importance":
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise BadLine(key, "must be a number from 0 to 1")
        if not 0 <= value <= 1:
            raise BadLine(key, f"is {value}, must be from 0 to 1")
        item.importance = value
    elif key == "tags":
        item.tags.extend(_strings(key, value))
    elif key == "supersedes":
        item.supersedes.extend([value] if isinstance(value, str) else _strings(key, value))
    elif isinstance(value, dict):
        for name, entry in value.items():
            _set_attribute(item.attributes[name], f"attributes[{json.dumps(name[:64])}]", entry)
    else:
        raise BadLine(key, "must be an object")


def _string(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise BadLine(key, "must be a string")
    return value


def _strings(key: str, value: object) -> list[str]:
    if not isinstance(value, list):
        raise BadLine(key, "must be a list of strings")
    return [_string(f"{key}[{index}]", entry) for index, entry in enumerate(value)]


def _kind(value: object) -> types_pb2.MemoryKind.ValueType:
    number = _KINDS.get(value.lower()) if isinstance(value, str) else None
    if number is None:
        raise BadLine("kind", f"must be one of {', '.join(_KINDS)}")
    return number


def _time(key: str, value: object) -> Timestamp:
    """Read an RFC 3339 time; one without an offset is taken as UTC."""
    text = _string(key, value).strip().replace(" ", "T", 1).upper()
    clock = text.partition("T")[2]
    stamp = Timestamp()
    try:
        stamp.FromJsonString(text if clock.endswith("Z") or "+" in clock or "-" in clock else f"{text}Z")
    except (ValueError, OverflowError):
        raise BadLine(key, "must be a time such as 2026-03-02T06:02:00Z") from None
    return stamp


def _set_attribute(attribute: types_pb2.AttributeValue, path: str, value: object) -> None:
    if isinstance(value, bool):
        attribute.bool_value = value
    elif isinstance(value, int):
        if value not in _INT64:
            raise BadLine(path, "is an integer of more than 64 bits")
        attribute.int_value = value
    elif isinstance(value, float):
        attribute.double_value = value
    elif isinstance(value, str):
        attribute.string_value = value
    elif isinstance(value, list):
        attribute.string_list.SetInParent()
        attribute.string_list.values.extend(_strings(path, value))
    else:
        raise BadLine(path, "must be a string, a number, a truth value or a list of strings")
