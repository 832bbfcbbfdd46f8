"""The ingest stream: one outcome an item, nothing doubled, order kept, limits named."""

from __future__ import annotations

from contextlib import suppress

import grpc
import pytest
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2

from tests.support.ingest import IngestStream, store, texts
from tests.support.process import Stubs
from tests.support.reads import listed
from tests.support.status import read

CREATED = pb.Disposition.DISPOSITION_CREATED
DUPLICATE = pb.Disposition.DISPOSITION_DUPLICATE
REJECTED = pb.Disposition.DISPOSITION_REJECTED


def test_trivial_texts_get_an_outcome_each(stubs: Stubs, namespace: str) -> None:
    trivial = ["ok", "ok", ".", "…", "👍", " ", "no", "猫"]
    results = store(stubs, namespace, texts(*trivial))
    assert [result.disposition for result in results] == [CREATED] * len(trivial)
    assert [memory.text for memory in listed(stubs, namespace)] == trivial


def test_a_bad_item_is_rejected_with_its_field_and_the_others_are_stored(stubs: Stubs, namespace: str) -> None:
    items = [
        types_pb2.MemoryInput(text="first"),
        types_pb2.MemoryInput(text=""),
        types_pb2.MemoryInput(text="x", memory_id="not allowed"),
        types_pb2.MemoryInput(text="x", importance=2.0),
        types_pb2.MemoryInput(text="y" * 32_769),
        types_pb2.MemoryInput(text="last"),
    ]
    results = store(stubs, namespace, items)
    rejected = [(r.error.field, r.seq) for r in results if r.disposition == REJECTED]
    assert rejected == [("text", 2), ("memory_id", 3), ("importance", 4), ("text", 5)]
    assert "32768" in results[4].error.message.replace(",", "")
    assert [memory.text for memory in listed(stubs, namespace)] == ["first", "last"]


def test_the_same_items_ten_times_by_id_are_stored_once(stubs: Stubs, namespace: str) -> None:
    items = [types_pb2.MemoryInput(text=f"note {n}", memory_id=f"m{n}") for n in range(583)]
    for turn in range(10):
        results = store(stubs, namespace, items, stream_id=f"turn-{turn}", level=pb.AckLevel.ACK_LEVEL_DURABLE)
        assert {result.disposition for result in results} == {DUPLICATE if turn else CREATED}
        assert [result.memory_id for result in results] == [item.memory_id for item in items]
    assert len(listed(stubs, namespace, page_size=1000)) == 583


def test_the_same_sequence_numbers_ten_times_are_stored_once(stubs: Stubs, namespace: str) -> None:
    items = texts(*(f"note {n}" for n in range(583)))
    for _ in range(10):
        with IngestStream(stubs, namespace) as stream:
            for start in range(0, 583, 64):
                stream.batch(items[start : start + 64], first_seq=start + 1)
            finished = stream.finish()
        assert finished.created == 583
    assert len(listed(stubs, namespace, page_size=1000)) == 583


def test_a_resend_after_a_lost_acknowledgement_stores_no_second_memory(stubs: Stubs, namespace: str) -> None:
    with IngestStream(stubs, namespace) as stream:
        stream.batch(texts("one", "two"))
        stream.acked()
        stream.call.cancel()  # as if the acknowledgement never came
    with IngestStream(stubs, namespace) as again:
        assert again.opened.next_seq == 3
        again.batch(texts("one", "two", "three"), first_seq=1)
        again.acked(3)
        again.finish()
    assert [memory.text for memory in listed(stubs, namespace)] == ["one", "two", "three"]


def test_a_stream_that_was_cut_goes_on_where_it_was(stubs: Stubs, namespace: str) -> None:
    with IngestStream(stubs, namespace) as stream:
        stream.batch(texts(*(f"note {n}" for n in range(1, 101))))
        stream.acked()
        stream.half_close()  # an end without finish is a disconnect
        assert list(stream.rest()) == []
    with IngestStream(stubs, namespace) as again:
        assert again.next_seq == 101
        again.batch(texts("note 101"))
        assert again.finish().created == 101
    assert [memory.text for memory in listed(stubs, namespace, page_size=200)][-1] == "note 101"


def test_a_gap_is_out_of_range_and_says_what_is_expected(stubs: Stubs, namespace: str) -> None:
    with IngestStream(stubs, namespace) as stream:
        stream.batch(texts("one"))
        stream.batch(texts("three"), first_seq=3)
        failure = read(stream.failure())
    assert (failure.code, failure.reason) == (grpc.StatusCode.OUT_OF_RANGE, "SEQUENCE_GAP")
    assert failure.facts["next_seq"] == "2"
    assert [memory.text for memory in listed(stubs, namespace)] == ["one"]
    assert [result.seq for result in stream.results] == [1]


def test_the_newest_opener_fences_the_older(stubs: Stubs, namespace: str) -> None:
    with IngestStream(stubs, namespace) as older:
        older.batch(texts("from the older"))
        older.acked()
        with IngestStream(stubs, namespace) as newer:
            older.batch(texts("too late"))
            failure = read(older.failure())
            newer.batch(texts("from the newer"))
            newer.finish()
    assert (failure.code, failure.reason) == (grpc.StatusCode.ABORTED, "STREAM_FENCED")
    assert [memory.text for memory in listed(stubs, namespace)] == ["from the older", "from the newer"]


def test_finish_must_name_the_last_item(stubs: Stubs, namespace: str) -> None:
    with IngestStream(stubs, namespace) as stream:
        stream.batch(texts("one"))
        stream.send(pb.IngestRequest(finish=pb.IngestFinish(last_seq=5)))
        failure = read(stream.failure())
    assert (failure.code, failure.reason) == (grpc.StatusCode.OUT_OF_RANGE, "SEQUENCE_GAP")


@pytest.mark.parametrize(
    "frames",
    [
        [pb.IngestRequest(batch=pb.IngestBatch(first_seq=1, items=texts("x")))],
        [pb.IngestRequest(finish=pb.IngestFinish())],
        [
            pb.IngestRequest(open=pb.IngestOpen(namespace="t-order", stream_id="s")),
            pb.IngestRequest(open=pb.IngestOpen(namespace="t-order", stream_id="s")),
        ],
    ],
    ids=["a batch first", "finish first", "two opens"],
)
def test_frames_out_of_order_are_a_failed_precondition(stubs: Stubs, frames: list[pb.IngestRequest]) -> None:
    with IngestStream(stubs, "t-order", opening=False) as stream:
        for frame in frames:
            stream.send(frame)
        failure = read(stream.failure())
    assert (failure.code, failure.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "FRAME_ORDER")


def test_a_frame_after_finish_stores_nothing(stubs: Stubs, namespace: str) -> None:
    with IngestStream(stubs, namespace, level=pb.AckLevel.ACK_LEVEL_ORGANIZED) as stream:
        stream.batch(texts("one"))
        stream.send(pb.IngestRequest(finish=pb.IngestFinish(last_seq=1)))
        stream.batch(texts("after the end"))
        with suppress(grpc.RpcError):  # FRAME_ORDER, unless the stream was finished before the frame came
            list(stream.rest())
    assert [memory.text for memory in listed(stubs, namespace)] == ["one"]


def test_too_many_items_in_one_frame_are_refused_with_the_limit(stubs: Stubs, namespace: str) -> None:
    with IngestStream(stubs, namespace) as stream:
        stream.batch(texts(*["x"] * 257))
        failure = read(stream.failure())
    assert (failure.code, failure.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ("batch.items",))
    assert "256" in failure.message


def test_a_frame_over_the_byte_limit_is_refused_with_the_limit(stubs: Stubs, namespace: str) -> None:
    with IngestStream(stubs, namespace) as stream:
        stream.batch(texts(*["x" * 32_000] * 40))
        failure = read(stream.failure())
    assert (failure.code, failure.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "MESSAGE_TOO_LARGE")
    assert str(1 << 20) in failure.message


def test_more_than_the_window_waits_for_its_reader_and_nothing_is_dropped(stubs: Stubs, namespace: str) -> None:
    with IngestStream(stubs, namespace) as stream:
        window = stream.opened.window_items
        for start in range(0, window, 256):
            stream.batch(texts(*(f"note {n}" for n in range(start, min(start + 256, window)))))
        stream.acked()
        stream.batch(texts("one more than the window"))
        assert stream.finish().created == window + 1
    assert len(listed(stubs, namespace, page_size=1000)) == window + 1


def test_an_ack_level_that_the_stages_never_reach_is_refused(stubs: Stubs, namespace: str) -> None:
    with IngestStream(stubs, namespace, opening=False) as stream:
        stream.send(
            pb.IngestRequest(
                open=pb.IngestOpen(
                    namespace=namespace,
                    stream_id="s",
                    ack_level=pb.AckLevel.ACK_LEVEL_ORGANIZED,
                    stages=pb.IngestStages.INGEST_STAGES_EMBED_ONLY,
                )
            )
        )
        failure = read(stream.failure())
    assert (failure.code, failure.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ("open.ack_level",))


def test_outcomes_come_again_at_each_level_up_to_the_one_asked_for(stubs: Stubs, namespace: str) -> None:
    with IngestStream(stubs, namespace, level=pb.AckLevel.ACK_LEVEL_ORGANIZED) as stream:
        stream.batch(texts("the dock is B3"))
        stream.finish()
    levels = [result.level for result in stream.results]
    assert levels[0] == pb.AckLevel.ACK_LEVEL_DURABLE
    assert levels[-1] == pb.AckLevel.ACK_LEVEL_ORGANIZED
    assert levels == sorted(levels)
    assert stream.results[-1].state == types_pb2.MemoryState.MEMORY_STATE_EVOLVED
