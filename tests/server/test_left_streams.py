"""Callers that leave in the middle of a stream of rows or changes, and rows that no text can hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from clag.v1 import admin_service_pb2 as pb
from clag.v1 import memory_service_pb2 as memory_pb
from clag.v1 import types_pb2

from tests.support.ingest import store, texts
from tests.support.process import ServerProcess, Stubs
from tests.support.reads import listed
from tests.support.status import read
from tests.support.transfer import TIMEOUT_S, ImportStream

SURROGATE = b"arm \xed\xa0\xbd stuck"
ROUNDS = 30


def field(number: int, content: bytes) -> bytes:
    """One length-delimited protobuf field of less than 128 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


def row(memory_id: str, text: str) -> pb.ExportRecord:
    return pb.ExportRecord(memory=types_pb2.Memory(memory_id=memory_id, text=text))


def test_a_row_with_a_lone_surrogate_is_rejected_and_the_import_goes_on(stubs: Stubs, namespace: str) -> None:
    opening = pb.ImportRequest(open=pb.ImportOpen(namespace=namespace, stream_id="s")).SerializeToString()
    good = [field(2, row(name, "the arm is free").SerializeToString()) for name in ("a", "b")]
    text = types_pb2.Memory.DESCRIPTOR.fields_by_name["text"].number
    bad = field(2, field(3, field(text, SURROGATE)))
    batch = field(2, bytes([1 << 3, 1]) + good[0] + bad + good[1])
    finish = pb.ImportRequest(finish=pb.ImportFinish(last_seq=3)).SerializeToString()
    call: Any = stubs.channel.stream_stream(
        "/clag.v1.AdminService/Import", request_serializer=None, response_deserializer=pb.ImportResponse.FromString
    )
    answers = list(call(iter([opening, batch, finish]), timeout=TIMEOUT_S))
    rejected = {rejection.seq: rejection.error for answer in answers for rejection in answer.ack.rejections}
    assert list(rejected) == [2]
    assert "UTF-8" in rejected[2].message
    assert answers[-1].finished.imported == 2
    assert [memory.memory_id for memory in listed(stubs, namespace)] == ["a", "b"]


@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_an_import_whose_caller_leaves_keeps_what_was_acknowledged_and_goes_on_from_there(
    stubs: Stubs, namespace: str, how: str
) -> None:
    with ImportStream(stubs, namespace, timeout_s=2.0 if how == "deadline" else TIMEOUT_S) as stream:
        stream.batch([row("a", "one"), row("b", "two")])
        stream.acked()
        if how == "cancel":
            stream.call.cancel()
        ended = read(stream.failure())
    assert ended.code in (grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)
    with ImportStream(stubs, namespace) as again:
        assert again.opened.next_seq == 3
        again.batch([row("b", "two"), row("c", "three")], first_seq=2)
        again.finish()
    assert [memory.text for memory in listed(stubs, namespace)] == ["one", "two", "three"]


def test_watches_and_exports_that_are_left_leave_nothing_behind(
    shared_server: ServerProcess, stubs: Stubs, namespace: str
) -> None:
    store(stubs, namespace, texts(*(f"note {number} " + "x" * 4_000 for number in range(400))))
    process = psutil.Process(shared_server.pid)

    def leave() -> None:
        watch = stubs.memory.Watch(memory_pb.WatchRequest(namespace=namespace), timeout=TIMEOUT_S)
        export = stubs.admin.Export(pb.ExportRequest(namespace=namespace), timeout=TIMEOUT_S)
        cursor = next(export).cursor
        next(watch)
        watch.cancel()
        export.cancel()
        # Whoever comes back for the rest lets the snapshot go.
        rest = pb.ExportRequest(namespace=namespace, cursor=cursor)
        for _ in stubs.admin.Export(rest, timeout=TIMEOUT_S):
            pass

    leave()
    before = (process.num_threads(), process.num_fds(), _snapshots(shared_server.data_dir))
    for _ in range(ROUNDS):
        leave()
    after = (process.num_threads(), process.num_fds(), _snapshots(shared_server.data_dir))
    # Threads and files of pools that fill up once may join; thirty of each would be a leak.
    assert all(now <= then + 8 for now, then in zip(after, before, strict=True)), (before, after)


def _snapshots(data_dir: Path) -> int:
    return len(list((data_dir / "exports").iterdir()))
