"""Filters over gRPC: every built-in field that is no plain property of the input, and what has expired."""

from __future__ import annotations

import grpc
import pytest
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from google.protobuf.timestamp_pb2 import Timestamp

from tests.support.ingest import store
from tests.support.process import Stubs
from tests.support.reads import ask, get
from tests.support.status import refused

PAST, FUTURE = Timestamp(seconds=1_000_000_000), Timestamp(seconds=4_000_000_000)


@pytest.fixture(scope="module")
def filled(stubs: Stubs) -> str:
    """A namespace with a memory that expired, one that will, and one that was superseded."""
    items = [
        types_pb2.MemoryInput(text="the dock is B3", memory_id="old", session_id="a"),
        types_pb2.MemoryInput(text="the dock is B7", memory_id="new", session_id="a", supersedes=["old"]),
        types_pb2.MemoryInput(text="100% of the_dock", memory_id="gone", session_id="b", expire_time=PAST),
        types_pb2.MemoryInput(text="lunch is at noon", memory_id="soon", session_id="b", expire_time=FUTURE),
    ]
    store(stubs, "t-filters", items)
    return "t-filters"


def listed_by(stubs: Stubs, namespace: str, field: str, op: str, **operand: object) -> list[str]:
    comparison = types_pb2.Comparison(
        field=types_pb2.FilterField.Value(f"FILTER_FIELD_{field}"),
        op=types_pb2.FilterOperator.Value(f"FILTER_OPERATOR_{op}"),
        **operand,  # type: ignore[arg-type]
    )
    request = pb.ListMemoriesRequest(namespace=namespace, filter=types_pb2.Filter(comparison=comparison))
    return [memory.memory_id for memory in stubs.memory.ListMemories(request, timeout=20).memories]


def text(value: str) -> types_pb2.AttributeValue:
    return types_pb2.AttributeValue(string_value=value)


def test_text_is_compared_by_plain_parts(stubs: Stubs, filled: str) -> None:
    assert listed_by(stubs, filled, "TEXT", "CONTAINS", value=text("the dock")) == ["old", "new"]
    assert listed_by(stubs, filled, "TEXT", "CONTAINS", value=text("0% of the_")) == ["gone"]
    assert listed_by(stubs, filled, "TEXT", "CONTAINS", value=text("The dock")) == []
    with refused(grpc.StatusCode.INVALID_ARGUMENT) as failures:
        listed_by(stubs, filled, "TEXT", "EQ", value=text("the dock is B3"))
    assert failures[0].fields == ("filter.comparison.op",)


def test_expiry_and_update_times_are_compared(stubs: Stubs, filled: str) -> None:
    assert listed_by(stubs, filled, "EXPIRE_TIME", "EXISTS") == ["gone", "soon"]
    assert listed_by(stubs, filled, "EXPIRE_TIME", "LT", time_value=Timestamp(seconds=2_000_000_000)) == ["gone"]
    assert listed_by(stubs, filled, "UPDATE_TIME", "GT", time_value=PAST) == ["old", "new", "gone", "soon"]


def test_supersession_and_episodes_are_compared(stubs: Stubs, filled: str) -> None:
    assert listed_by(stubs, filled, "SUPERSEDED_BY", "EXISTS") == ["old"]
    assert listed_by(stubs, filled, "SUPERSEDED_BY", "EQ", value=text("new")) == ["old"]
    episode = get(stubs, filled, "soon").episode_id
    assert "soon" in listed_by(stubs, filled, "EPISODE_ID", "EQ", value=text(episode))
    assert "old" not in listed_by(stubs, filled, "EPISODE_ID", "EQ", value=text(episode))
    assert listed_by(stubs, filled, "EPISODE_ID", "EQ", value=text("e999999")) == []


def test_an_expired_memory_is_not_retrieved_and_can_still_be_read(stubs: Stubs, filled: str) -> None:
    assert "gone" not in [hit.memory.memory_id for hit in ask(stubs, filled, "100% of the_dock")]
    assert get(stubs, filled, "gone").expire_time == PAST


def test_importance_compares_as_it_was_given_and_as_shown_where_none_was(stubs: Stubs, namespace: str) -> None:
    items = [
        types_pb2.MemoryInput(text="a small thing", memory_id="low", importance=0.1),
        types_pb2.MemoryInput(text="a big thing", memory_id="high", importance=0.7),
        types_pb2.MemoryInput(text="a thing", memory_id="unset"),
    ]
    store(stubs, namespace, items)

    def matching(op: str, number: float) -> list[str]:
        value = types_pb2.AttributeValue(double_value=number)
        return listed_by(stubs, namespace, "IMPORTANCE", op, value=value)

    assert matching("EQ", 0.1) == ["low"]
    assert matching("GE", 0.7) == ["high"]
    assert matching("EQ", 0.5) == ["unset"]
    assert matching("LE", 0.5) == ["low", "unset"]
