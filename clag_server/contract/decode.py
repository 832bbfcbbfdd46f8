"""Decoding that never raises: bad bytes become a value that says which field is at fault.

A gRPC request deserializer that raises ends the call as INTERNAL without a word. Ours returns `Malformed`
instead, and for frames whose items are checked one by one `Repaired`: the good items as they are and the bad
ones blanked, so that one lone surrogate in a stream of thousands costs one item and not the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Generic, TypeVar, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from clag_server.contract.pool import checked_alone, lenient_class, strict_class
from clag_server.contract.violations import MAX_VIOLATIONS, key_path
from clag_server.types.errors import FieldViolation

M = TypeVar("M", bound=Message)

_NOT_PROTOBUF: Final = FieldViolation("", "is not a valid protobuf message of the expected type")
_BAD_UTF8: Final = "must be well-formed UTF-8"


@dataclass(frozen=True, slots=True)
class Malformed:
    """Bytes that are no message of the expected type.

    Attributes:
        violations: what is wrong, never empty. An empty path means the message as a whole.
    """

    violations: tuple[FieldViolation, ...]


@dataclass(frozen=True, slots=True)
class Repaired(Generic[M]):
    """A frame of which some items could not be decoded.

    Attributes:
        message: the frame; the bad items are in their places and empty.
        blanked: what is wrong, by index of the item; paths are relative to the item.
    """

    message: M
    blanked: Mapping[int, tuple[FieldViolation, ...]]


def decoder(full_name: str, *, repair: bool = False) -> Callable[[bytes], Message | Malformed | Repaired[Message]]:
    """Return a deserializer for a message that never raises.

    Args:
        full_name: e.g. "clag.v1.IngestRequest".
        repair: whether bad items of fields that are checked alone are blanked and the rest is kept.

    Raises:
        KeyError: at once, if the contract has no such message.
    """
    strict = strict_class(full_name)

    def decode(data: bytes) -> Message | Malformed | Repaired[Message]:
        try:
            return strict.FromString(data)
        except DecodeError:
            return _explain(full_name, data, repair=repair)

    return decode


def _explain(full_name: str, data: bytes, *, repair: bool) -> Malformed | Repaired[Message]:
    try:
        lenient = lenient_class(full_name).FromString(data)
    except DecodeError:
        return Malformed((_NOT_PROTOBUF,))
    blanked: dict[int, tuple[FieldViolation, ...]] = {}
    found = tuple(_bad_strings(lenient, "", blanked if repair else None))
    if found:
        return Malformed(found[:MAX_VIOLATIONS])
    if not blanked:
        return Malformed((_NOT_PROTOBUF,))
    return Repaired(strict_class(full_name).FromString(lenient.SerializeToString()), blanked)


def _bad_strings(
    message: Message, path: str, blanked: dict[int, tuple[FieldViolation, ...]] | None
) -> Iterator[FieldViolation]:
    """Yield the ill-formed strings of a lenient message; blank items that hold some, if asked to."""
    name = message.DESCRIPTOR.full_name
    for field, value in message.ListFields():
        if blanked is not None and field.full_name in checked_alone():
            _blank(_as_list(field, value), blanked)
            continue
        # The key and the value of a map entry have the entry's own path, as in the rules' violations.
        below = path if _is_map_entry(name) else _joined(path, field.name)
        if field.full_name in _string_fields(name):
            yield from _bad_values(field, value, below)
        elif field.message_type is not None:
            for index, child in enumerate(_as_list(field, value)):
                yield from _bad_strings(child, _item_path(field, index, child, below), blanked)


def _blank(items: Sequence[Message], blanked: dict[int, tuple[FieldViolation, ...]]) -> None:
    for index, item in enumerate(items):
        found = tuple(_bad_strings(item, "", None))
        if found:
            blanked[index] = found[:MAX_VIOLATIONS]
            item.Clear()


def _bad_values(field: FieldDescriptor, value: object, path: str) -> Iterator[FieldViolation]:
    values = cast("Sequence[bytes]", _as_list(field, value))
    for index, raw in enumerate(values):
        try:
            raw.decode("utf-8")
        except UnicodeDecodeError as error:
            where = f"{path}[{index}]" if field.is_repeated else path
            yield FieldViolation(where, f"{_BAD_UTF8}, is not at byte {error.start}")


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _item_path(field: FieldDescriptor, index: int, child: Message, path: str) -> str:
    if _is_map_entry(child.DESCRIPTOR.full_name):
        return key_path(path, _entry_key(child))
    return f"{path}[{index}]" if field.is_repeated else path


def _entry_key(entry: Message) -> str:
    key: object = cast("Any", entry).key  # map entries have no class of their own to name
    return key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else str(key)


def _as_list(field: FieldDescriptor, value: object) -> Sequence[Message]:
    return cast("Sequence[Message]", value if field.is_repeated else [value])


@cache
def _string_fields(message_name: str) -> frozenset[str]:
    """Full names of the fields that the contract declares as strings (the lenient pool has bytes there)."""
    fields = strict_class(message_name).DESCRIPTOR.fields
    return frozenset(field.full_name for field in fields if field.type == FieldDescriptor.TYPE_STRING)


@cache
def _is_map_entry(message_name: str) -> bool:
    return bool(strict_class(message_name).DESCRIPTOR.GetOptions().map_entry)
