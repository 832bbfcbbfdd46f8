"""Messages of every type of the contract with chosen values: empty, zero, extreme, odd texts, each arm of a choice.

Made from descriptors, so a field that is added is covered. What is random is random by a seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from clag.v1 import admin_service_pb2, cluster_service_pb2, memory_service_pb2, types_pb2
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, OneofDescriptor
from google.protobuf.message import Message

__all__ = ["KINDS", "PLANES", "samples"]

_FILES: Final = (types_pb2, memory_service_pb2, cluster_service_pb2, admin_service_pb2)
_DEEPEST: Final = 4
"""Filters hold filters: a message is filled to this depth, deeper ones stay empty."""

_EDGES: Final = "\ufeff\u0001\t\r\n\x7f\u0080é\u0301ß猫ก\u200d\u202e\ud7ff\ue000\ufffd\uffff"
PLANES: Final = _EDGES + "".join(
    chr(plane * 0x10000 + offset) for plane in range(1, 17) for offset in (0, 0xF600, 0xFFFD)
)
"""A byte order mark first (some decoders eat it), controls, joiners, the edges of the surrogates, every plane."""

_INSTANTS: Final = "google.protobuf.Timestamp"
_SPANS: Final = "google.protobuf.Duration"

_F = FieldDescriptor
_INTEGERS: Final[Mapping[int, tuple[int, int]]] = {
    _F.TYPE_INT32: (-(2**31), 2**31 - 1),
    _F.TYPE_INT64: (-(2**63), 2**63 - 1),
    _F.TYPE_UINT32: (0, 2**32 - 1),
    _F.TYPE_UINT64: (0, 2**64 - 1),
}
_FLT_MAX: Final = 3.4028234663852886e38
_FLT_TRUE_MIN: Final = 1.401298464324817e-45
_DBL_MAX: Final = 1.7976931348623157e308
_DBL_TRUE_MIN: Final = 5e-324


@dataclass(frozen=True, slots=True)
class _Values:
    """What fields are filled with.

    Attributes:
        scalar: a value for a field that is no message.
        instant: seconds and nanoseconds of times.
        span: seconds and nanoseconds of durations.
        elements: how many elements lists and maps have.
        arm: which field of a choice is set.
        sets: whether a field is set at all.
    """

    scalar: Callable[[FieldDescriptor], Any]
    instant: Callable[[], tuple[int, int]]
    span: Callable[[], tuple[int, int]]
    elements: Callable[[], int]
    arm: Callable[[OneofDescriptor], FieldDescriptor]
    sets: Callable[[FieldDescriptor], bool] = lambda _field: True


def samples(kind: str, *, seed: int = 0, count: int = 1) -> Iterator[Message]:
    """Yield messages of every type.

    Args:
        kind: one of `KINDS`.
        seed: of what is random.
        count: messages of each type, where they are random.
    """
    for descriptor in _types():
        yield from KINDS[kind](descriptor, seed, count)


def _types() -> Iterator[Descriptor]:
    for file in _FILES:
        yield from file.DESCRIPTOR.message_types_by_name.values()


def _filled(descriptor: Descriptor, values: _Values, depth: int = 0) -> Message:
    message = message_factory.GetMessageClass(descriptor)()
    if descriptor.full_name in (_INSTANTS, _SPANS):
        pick = values.instant if descriptor.full_name == _INSTANTS else values.span
        message.seconds, message.nanos = pick()  # type: ignore[attr-defined]
        return message
    if depth > _DEEPEST:
        return message
    arms = {values.arm(choice).name for choice in descriptor.oneofs if len(choice.fields) > 1}
    for field in descriptor.fields:
        choice = field.containing_oneof
        if choice is not None and len(choice.fields) > 1 and field.name not in arms:
            continue
        if values.sets(field):
            _set(message, field, values, depth)
    return message


def _set(message: Message, field: FieldDescriptor, values: _Values, depth: int) -> None:
    target = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        for number in range(values.elements()):
            name = f"{values.scalar(key)}{number or ''}"
            if value.message_type is not None:
                target[name].CopyFrom(_filled(value.message_type, values, depth + 1))
            else:
                target[name] = values.scalar(value)
    elif field.is_repeated:
        for _ in range(values.elements()):
            if field.message_type is not None:
                target.add().CopyFrom(_filled(field.message_type, values, depth + 1))
            else:
                target.append(values.scalar(field))
    elif field.message_type is not None:
        target.SetInParent()
        target.CopyFrom(_filled(field.message_type, values, depth + 1))
    else:
        setattr(message, field.name, values.scalar(field))


def _enum_of(field: FieldDescriptor) -> EnumDescriptor:
    assert field.enum_type is not None
    return field.enum_type


def _first(choice: OneofDescriptor) -> FieldDescriptor:
    return choice.fields[0]


def _fixed(
    *,
    text: str,
    integer: Callable[[int, int], int],
    numbers: tuple[float, float],
    truth: bool,
    enum: Callable[[EnumDescriptor], int],
    instant: tuple[int, int],
    span: tuple[int, int],
    elements: int,
    arm: Callable[[OneofDescriptor], FieldDescriptor] = _first,
) -> _Values:
    def scalar(field: FieldDescriptor) -> Any:
        if field.type == _F.TYPE_STRING:
            return text
        if field.type == _F.TYPE_BOOL:
            return truth
        if field.type == _F.TYPE_ENUM:
            return enum(_enum_of(field))
        if field.type in (_F.TYPE_FLOAT, _F.TYPE_DOUBLE):
            return numbers[field.type == _F.TYPE_DOUBLE]
        return integer(*_INTEGERS[field.type])

    return _Values(scalar, lambda: instant, lambda: span, lambda: elements, arm)


_LAST_INSTANT: Final = (253402300799, 999_999_999)
_FIRST_INSTANT: Final = (-62135596800, 0)
_MAX = {
    "text": "z" * 300,
    "integer": lambda _low, high: high,
    "numbers": (_FLT_MAX, _DBL_MAX),
    "truth": True,
    "enum": lambda enum: enum.values[-1].number,
    "instant": _LAST_INSTANT,
    "span": (315_576_000_000, 999_999_999),
    "elements": 3,
}
_FIXED: Final[dict[str, _Values]] = {
    "zero": _fixed(
        text="",
        integer=lambda _low, _high: 0,
        numbers=(0.0, 0.0),
        truth=False,
        enum=lambda _enum: 0,
        instant=(0, 0),
        span=(0, 0),
        elements=1,
    ),
    "max": _fixed(**_MAX),  # type: ignore[arg-type]  # of the parameters' own types
    "min": _fixed(
        text="a",
        integer=lambda low, _high: low,
        numbers=(-_FLT_MAX, -_DBL_MAX),
        truth=True,
        enum=lambda enum: enum.values[min(1, len(enum.values) - 1)].number,
        instant=_FIRST_INSTANT,
        span=(-315_576_000_000, -999_999_999),
        elements=1,
    ),
    "tiny": _fixed(**{**_MAX, "numbers": (_FLT_TRUE_MIN, _DBL_TRUE_MIN), "instant": (0, 1), "span": (0, -1)}),  # type: ignore[arg-type]
    "before_1970": _fixed(**{**_MAX, "instant": (-1, 999_999_999), "span": (-1, -1)}),  # type: ignore[arg-type]
    "planes": _fixed(**{**_MAX, "text": PLANES}),  # type: ignore[arg-type]
    "nul": _fixed(**{**_MAX, "text": "\x00a\x00b\x00"}),  # type: ignore[arg-type]
    "nan": _fixed(**{**_MAX, "numbers": (float("nan"), float("nan"))}),  # type: ignore[arg-type]
    "infinite": _fixed(**{**_MAX, "numbers": (float("-inf"), float("inf"))}),  # type: ignore[arg-type]
    "negative_zero": _fixed(**{**_MAX, "numbers": (-0.0, -0.0)}),  # type: ignore[arg-type]
    "unknown_enum": _fixed(**{**_MAX, "enum": lambda _enum: 1_000}),  # type: ignore[arg-type]
    "negative_enum": _fixed(**{**_MAX, "enum": lambda _enum: -1}),  # type: ignore[arg-type]
}


def _of(values: _Values) -> Callable[[Descriptor, int, int], Iterator[Message]]:
    def made(descriptor: Descriptor, _seed: int, _count: int) -> Iterator[Message]:
        yield _filled(descriptor, values)

    return made


def _empty(descriptor: Descriptor, _seed: int, _count: int) -> Iterator[Message]:
    yield message_factory.GetMessageClass(descriptor)()


def _arms(descriptor: Descriptor, _seed: int, _count: int) -> Iterator[Message]:
    for choice in descriptor.oneofs:
        for index in range(len(choice.fields)):
            picked = index

            def arm(found: OneofDescriptor, picked: int = picked) -> FieldDescriptor:
                return found.fields[picked % len(found.fields)]

            yield _filled(descriptor, _fixed(**{**_MAX, "arm": arm}))  # type: ignore[arg-type]


def _random(descriptor: Descriptor, seed: int, count: int) -> Iterator[Message]:
    dice = random.Random(f"{seed} {descriptor.full_name}")  # noqa: S311  # samples, not secrets

    def scalar(field: FieldDescriptor) -> Any:
        if field.type == _F.TYPE_STRING:
            return "".join(dice.choices(PLANES + "abcdefgh \x00", k=dice.randrange(12)))
        if field.type == _F.TYPE_BOOL:
            return dice.random() < 0.5
        if field.type == _F.TYPE_ENUM:
            return dice.choice(_enum_of(field).values).number
        if field.type == _F.TYPE_FLOAT:
            return dice.choice((0.0, 1.5, -2.25, dice.uniform(-1, 1), _FLT_MAX))
        if field.type == _F.TYPE_DOUBLE:
            return dice.choice((0.0, dice.gauss(0, 1e9), _DBL_TRUE_MIN))
        low, high = _INTEGERS[field.type]
        return dice.choice((low, high, 0, dice.randrange(low, high), dice.randrange(max(low, -9), 10)))

    values = _Values(
        scalar,
        lambda: (dice.randrange(_FIRST_INSTANT[0], _LAST_INSTANT[0]), dice.randrange(10**9)),
        lambda: (dice.randrange(10**9), dice.randrange(10**9)),
        lambda: dice.randrange(4),
        lambda choice: dice.choice(choice.fields),
        lambda _field: dice.random() < 0.7,
    )
    for _ in range(count):
        yield _filled(descriptor, values)


_UNKNOWN: Final = (
    bytes.fromhex("80b51801")  # field 50000, a varint
    + bytes.fromhex("8ab518")
    + b"\x05later"  # field 50001, bytes
    + bytes.fromhex("95b51801020304")  # field 50002, four bytes
    + bytes.fromhex("99b5180102030405060708")  # field 50003, eight bytes
)


def _unknown_fields(descriptor: Descriptor, _seed: int, _count: int) -> Iterator[Message]:
    message = _filled(descriptor, _FIXED["max"])
    for field, value in message.ListFields():
        if field.message_type is not None and not field.is_repeated:
            value.MergeFromString(_UNKNOWN)
    message.MergeFromString(_UNKNOWN)
    yield message


KINDS: Final[dict[str, Callable[[Descriptor, int, int], Iterator[Message]]]] = {
    "empty": _empty,
    **{name: _of(values) for name, values in _FIXED.items()},
    "arms": _arms,
    "random": _random,
    "unknown_fields": _unknown_fields,
}
