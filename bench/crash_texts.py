"""The memories of the crash benchmark: what is sent, by ledger entry."""

from __future__ import annotations

from typing import Final

from clag.v1 import types_pb2

from bench.crash_ledger import Entry, mark

NAMESPACE: Final = "crash"
GROUP: Final = 8
"""Serials that share a tag, which a delete by filter names."""

_TOPICS: Final = (
    "the charging dock in the north hall was blocked by a pallet",
    "the arm dropped a glass bottle near the conveyor belt",
    "a visitor asked for the way to the cafeteria and the lift",
    "the battery cell number four reports a temperature fault",
    "the cat sleeps on the warm router in the server room",
    "the forklift driver prefers the eastern gate at night",
)


def text_of(serial: int, version: int) -> str:
    """The text of a version: its mark, and a topic that consecutive serials share."""
    return f"{mark(serial, version)} {_TOPICS[serial // 40 % len(_TOPICS)]}"


def input_of(entry: Entry) -> types_pb2.MemoryInput:
    """The memory of an entry as it was first sent."""
    return types_pb2.MemoryInput(
        memory_id=entry.memory_id if entry.memory_id.startswith("given-") else "",
        text=text_of(entry.serial, 0),
        session_id=f"session-{entry.serial // 40 % 7}",
        tags=[group_of(entry)],
    )


def group_of(entry: Entry) -> str:
    """The tag of an entry's group."""
    return f"g{entry.serial // GROUP}"


def in_group(group: str) -> types_pb2.Filter:
    """The filter for a group."""
    comparison = types_pb2.Comparison(
        field=types_pb2.FILTER_FIELD_TAG,
        op=types_pb2.FILTER_OPERATOR_EQ,
        value=types_pb2.AttributeValue(string_value=group),
    )
    return types_pb2.Filter(comparison=comparison)
