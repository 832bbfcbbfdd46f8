"""Valid and arbitrary messages of the contract for property tests."""

from __future__ import annotations

from typing import Any

from clag.v1 import types_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from clag_server.contract import pool
from clag_server.contract.pool import strict_class

_EARLIEST, _LATEST = -9_214_560_000, 9_214_646_399  # seconds; years 1678 to 2261

words = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12)
idents = st.text("abcXYZ019._:-", min_size=1, max_size=16)
finite = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def attribute_values(draw: st.DrawFn) -> types_pb2.AttributeValue:
    return draw(
        st.one_of(
            st.builds(lambda v: types_pb2.AttributeValue(string_value=v), words),
            st.builds(lambda v: types_pb2.AttributeValue(int_value=v), st.integers(-(2**63), 2**63 - 1)),
            st.builds(lambda v: types_pb2.AttributeValue(double_value=v), finite),
            st.builds(lambda v: types_pb2.AttributeValue(bool_value=v), st.booleans()),
            st.builds(
                lambda v: types_pb2.AttributeValue(string_list=types_pb2.StringList(values=v)),
                st.lists(words, max_size=4),
            ),
        )
    )


@st.composite
def memory_inputs(draw: st.DrawFn) -> types_pb2.MemoryInput:
    """An input that keeps every rule."""
    memory_id = draw(st.one_of(st.just(""), idents))
    item = types_pb2.MemoryInput(
        memory_id=memory_id,
        text=draw(words.filter(bool)),
        kind=types_pb2.MemoryKind.ValueType(draw(st.integers(0, 7))),
        task=draw(words),
        speaker=draw(words),
        session_id=draw(words),
        tags=draw(st.lists(words.filter(bool), max_size=4)),
        supersedes=draw(st.lists(idents.filter(lambda other: other != memory_id), max_size=3)),
        embedding=draw(st.one_of(st.just([]), st.lists(st.floats(0.5, 1.0, width=32), min_size=1, max_size=8))),
    )
    for key, value in draw(st.dictionaries(words.filter(bool), attribute_values(), max_size=3)).items():
        item.attributes[key].CopyFrom(value)
    if draw(st.booleans()):
        item.importance = draw(st.floats(0, 1, width=32))
    for name in ("event_time", "expire_time"):
        if draw(st.booleans()):
            instant = getattr(item, name)
            instant.seconds = draw(st.integers(_EARLIEST, _LATEST))
            instant.nanos = draw(st.integers(0, 999_999_999))
    return item


def messages(full_name: str) -> st.SearchStrategy[Message]:
    """Messages with well-formed but otherwise arbitrary content, of the strict class."""
    chosen = _filled(pool.descriptor(full_name), depth=3)
    return chosen.map(lambda fields: strict_class(full_name)(**fields))


def _filled(descriptor: Descriptor, *, depth: int) -> st.SearchStrategy[dict[str, Any]]:
    optional = {}
    for field in descriptor.fields:
        value = _value(field, depth=depth)
        if value is not None:
            optional[field.name] = value
    return st.fixed_dictionaries({}, optional=optional).map(lambda chosen: _one_of_each(descriptor, chosen))


def _one_of_each(descriptor: Descriptor, chosen: dict[str, Any]) -> dict[str, Any]:
    for oneof in descriptor.oneofs:
        for extra in [field.name for field in oneof.fields if field.name in chosen][1:]:
            del chosen[extra]
    return chosen


def _value(field: FieldDescriptor, *, depth: int) -> st.SearchStrategy[Any] | None:
    child = field.message_type
    if child is not None and child.GetOptions().map_entry:
        inner = _value(child.fields_by_name["value"], depth=depth)
        return None if inner is None else st.dictionaries(words, inner, max_size=2)
    one = _single(field, depth=depth)
    if one is None or not field.is_repeated:
        return one
    return st.lists(one, max_size=2)


def _single(field: FieldDescriptor, *, depth: int) -> st.SearchStrategy[Any] | None:
    child = field.message_type
    if child is not None:
        if depth == 0:
            return None
        name = child.full_name
        fields = _filled(child, depth=depth - 1)
        if name.startswith("clag.v1."):
            return fields.map(lambda chosen: strict_class(name)(**chosen))
        return fields  # well-known types are set from a mapping of their fields
    kind = field.type
    if kind == FieldDescriptor.TYPE_STRING:
        return words
    if kind == FieldDescriptor.TYPE_BOOL:
        return st.booleans()
    if kind in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return st.floats(-1000, 1000, width=32)
    return st.integers(0, 2) if kind == FieldDescriptor.TYPE_ENUM else st.integers(0, 2**31 - 1)
