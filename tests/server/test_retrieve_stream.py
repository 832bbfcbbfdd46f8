"""RetrieveStream: many tagged queries over one call; one that is wrong or slow is nobody else's business."""

from __future__ import annotations

import signal
from typing import Any

import grpc
import psutil
import pytest
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2

from clag_server.api.limits import MAX_QUERIES_IN_FLIGHT, MAX_QUERY_BYTES
from tests.conftest import ServerMaker
from tests.support.ingest import store, texts
from tests.support.process import ServerProcess, Stubs
from tests.support.queries import TIMEOUT_S, QueryStream
from tests.support.reads import ask
from tests.support.status import read

INVALID = types_pb2.ERROR_REASON_INVALID_FIELD
CANCELLED = types_pb2.ERROR_REASON_CANCELLED
SURROGATE = b"arm \xed\xa0\xbd stuck"


def field(number: int, content: bytes) -> bytes:
    """One length-delimited protobuf field of less than 128 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


@pytest.fixture
def told(stubs: Stubs, namespace: str) -> str:
    """A namespace with fifty notes, each about a bay of its own."""
    store(stubs, namespace, texts(*(f"parcel number{n} waits in bay{n}" for n in range(50))))
    return namespace


def test_two_hundred_queries_in_flight_are_each_answered_as_if_asked_alone(stubs: Stubs, told: str) -> None:
    with QueryStream(stubs) as stream:
        assert stream.limits.max_in_flight == MAX_QUERIES_IN_FLIGHT
        ids = [f"q{n}" for n in range(200)]
        for n, query_id in enumerate(ids):
            stream.ask(query_id, told, f"where is number{n % 50}?", max_memories=3, context_tokens=60)
        stream.half_close()
        stream.rest()
    for n, query_id in enumerate(ids):
        assert stream.kinds(query_id) == ["clusters", "memories", "context", "done"], query_id
        assert stream.texts(query_id)[0] == f"parcel number{n % 50} waits in bay{n % 50}"
    alone = ask(stubs, told, "where is number7?", max_memories=3)
    assert stream.texts("q7") == [hit.memory.text for hit in alone]


@pytest.mark.parametrize(
    ("request_of", "reason", "named"),
    [
        (lambda _: pb.RetrieveRequest(namespace="No Such!", query=pb.Query(text="x")), INVALID, "namespace"),
        (lambda ns: pb.RetrieveRequest(namespace=ns), INVALID, "query"),
        (lambda ns: pb.RetrieveRequest(namespace=ns, query=pb.Query(text="a\0b")), INVALID, "query.text"),
        (
            lambda ns: pb.RetrieveRequest(namespace=ns, query=pb.Query(text="x"), max_memories=1_000),
            INVALID,
            "max_memories",
        ),
        (
            lambda ns: pb.RetrieveRequest(namespace=ns, query=pb.Query(embedding=[1.0])),
            types_pb2.ERROR_REASON_EMBEDDING_SHAPE,
            "query.embedding",
        ),
        (
            lambda ns: pb.RetrieveRequest(namespace=f"{ns}-none", query=pb.Query(text="x")),
            types_pb2.ERROR_REASON_NOT_FOUND,
            "",
        ),
        (
            lambda ns: pb.RetrieveRequest(namespace=ns, query=pb.Query(text="x" * (MAX_QUERY_BYTES + 1))),
            types_pb2.ERROR_REASON_MESSAGE_TOO_LARGE,
            "",
        ),
    ],
)
def test_a_bad_query_is_its_own_error_and_the_stream_goes_on(
    stubs: Stubs, told: str, request_of: Any, reason: int, named: str
) -> None:
    with QueryStream(stubs) as stream:
        stream.ask("before", told, "number1")
        stream.send(pb.RetrieveStreamRequest(query_id="bad", retrieve=request_of(told)))
        stream.ask("after", told, "number2")
        stream.half_close()
        stream.rest()
    (error,) = (frame.error for frame in stream.frames["bad"])
    assert (error.reason, error.field) == (reason, named)
    assert error.message
    assert stream.end_of("before") == stream.end_of("after") == "done"


def test_a_lone_surrogate_costs_its_query_and_not_the_stream(stubs: Stubs, told: str) -> None:
    good = pb.RetrieveStreamRequest(
        query_id="good", retrieve=pb.RetrieveRequest(namespace=told, query=pb.Query(text="number3"))
    )
    bad = field(1, b"bad") + field(2, field(1, told.encode()) + field(2, field(1, SURROGATE)))
    call: Any = stubs.channel.stream_stream(
        "/clag.v1.MemoryService/RetrieveStream",
        request_serializer=None,
        response_deserializer=pb.RetrieveStreamResponse.FromString,
    )
    frames = list(call(iter([bad, good.SerializeToString()]), timeout=TIMEOUT_S))
    (error,) = (frame.error for frame in frames if frame.query_id == "bad")
    assert error.field == "query.text"
    assert "UTF-8" in error.message
    assert [frame.WhichOneof("stage") for frame in frames if frame.query_id == "good"][-1] == "done"


@pytest.mark.parametrize("frame", [b"\xff\xff\xff", b"", field(1, b"x" * 100)], ids=["garbage", "empty", "tag"])
def test_what_is_no_frame_ends_the_stream_and_says_why(stubs: Stubs, frame: bytes) -> None:
    call: Any = stubs.channel.stream_stream(
        "/clag.v1.MemoryService/RetrieveStream",
        request_serializer=None,
        response_deserializer=pb.RetrieveStreamResponse.FromString,
    )
    with pytest.raises(grpc.RpcError) as caught:
        list(call(iter([frame]), timeout=TIMEOUT_S))
    assert read(caught.value).code is grpc.StatusCode.INVALID_ARGUMENT


def hanging(make_server: ServerMaker) -> tuple[ServerProcess, Stubs]:
    """A server whose embedder hangs, with a namespace "robots" in it."""
    server = make_server().start()
    stubs = server.connect()
    store(stubs, "robots", texts("the dock is B3"))
    (server.root / "script.json").write_text('{"embed": "hang"}', encoding="utf-8")
    return server, stubs


def test_one_query_is_cancelled_by_its_tag_and_the_others_are_answered(make_server: ServerMaker) -> None:
    server, stubs = hanging(make_server)
    with QueryStream(stubs) as stream:
        for query_id in ("a", "b", "c"):
            stream.ask(query_id, "robots", "dock")
        stream.cancel("b")
        stream.cancel("never asked")
        stream.ended("b")
        assert [frame.error.reason for frame in stream.frames["b"]] == [CANCELLED]
        stream.cancel("b")  # it is over: nothing more comes of it
        (server.root / "script.json").write_text("{}", encoding="utf-8")
        stream.ask("b", "robots", "dock")  # the tag is free again
        stream.frames["b"].clear()
        stream.ended("b")
        assert stream.texts("b") == ["the dock is B3"]
        stream.cancel("a")
        stream.cancel("c")
        stream.half_close()
        stream.rest()
    assert {stream.frames[query_id][-1].error.reason for query_id in ("a", "c")} == {CANCELLED}


def test_more_than_may_be_in_flight_ends_the_stream_with_the_limit(make_server: ServerMaker) -> None:
    _, stubs = hanging(make_server)
    with QueryStream(stubs) as stream:
        for n in range(MAX_QUERIES_IN_FLIGHT + 1):
            stream.ask(f"q{n}", "robots", "dock")
        failure = read(stream.failure())
    assert failure.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(MAX_QUERIES_IN_FLIGHT) in failure.message


def test_a_tag_that_is_in_use_ends_the_stream_and_names_the_field(make_server: ServerMaker) -> None:
    _, stubs = hanging(make_server)
    with QueryStream(stubs) as stream:
        stream.ask("a", "robots", "dock")
        stream.ask("a", "robots", "dock")
        failure = read(stream.failure())
    assert (failure.code, failure.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ("query_id",))


def test_a_server_that_drains_answers_what_it_can_and_ends_with_a_retry_hint(make_server: ServerMaker) -> None:
    server, stubs = hanging(make_server)
    with QueryStream(stubs) as stream:
        stream.ask("hangs", "robots", "dock")
        stream.ask("bad", "robots-none", "dock")
        stream.ended("bad")
        server.send(signal.SIGTERM)
        failure = read(stream.failure())
    assert (failure.code, failure.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    assert failure.retry_after_s is not None
    assert stream.end_of("hangs") == ""
    assert server.wait() == 0


def test_a_caller_that_leaves_in_the_middle_leaves_nothing_behind(
    shared_server: ServerProcess, stubs: Stubs, told: str
) -> None:
    process = psutil.Process(shared_server.pid)

    def leave() -> None:
        with QueryStream(stubs) as stream:
            for n in range(100):
                stream.ask(f"q{n}", told, f"number{n}")
            stream.ended("q0")

    leave()
    before = (process.num_threads(), process.num_fds())
    for _ in range(10):
        leave()
    after = (process.num_threads(), process.num_fds())
    assert all(now <= then + 8 for now, then in zip(after, before, strict=True)), (before, after)
    assert ask(stubs, told, "number1")[0].memory.text == "parcel number1 waits in bay1"


def test_a_reader_that_does_not_read_costs_bounded_memory(
    shared_server: ServerProcess, stubs: Stubs, namespace: str
) -> None:
    big = [types_pb2.MemoryInput(text=f"crate{n} " + "x" * 30_000) for n in range(128)]
    for start in range(0, len(big), 32):
        store(stubs, namespace, big[start : start + 32], stream_id=f"s{start}")
    whole = MAX_QUERIES_IN_FLIGHT * len(big) * 30_000  # what all the answers are together: 1 GB
    process = psutil.Process(shared_server.pid)
    before = process.memory_info().rss
    with QueryStream(stubs) as stream:
        for n in range(MAX_QUERIES_IN_FLIGHT):
            stream.ask(f"q{n}", namespace, "crate1", max_memories=128)
        # Another call is answered meanwhile, so the queries had their turns.
        for _ in range(20):
            ask(stubs, namespace, "crate2", max_memories=1)
        held = process.memory_info().rss - before
    assert held < whole / 3
