"""Export: a namespace leaves whole, as of one moment, at its reader's pace."""

from __future__ import annotations

from typing import Any

import grpc
import psutil
import pytest
from clag.v1 import admin_service_pb2 as pb
from clag.v1 import memory_service_pb2 as memory_pb
from clag.v1 import types_pb2

from tests.conftest import ServerMaker
from tests.support.ingest import store
from tests.support.process import Stubs
from tests.support.status import read
from tests.support.transfer import TIMEOUT_S, export
from tests.support.transferred import (
    filled,
    memories_of,
)


def test_an_export_is_of_one_moment_while_writes_go_on(stubs: Stubs, namespace: str) -> None:
    filled(stubs, namespace, 300)
    call = stubs.admin.Export(pb.ExportRequest(namespace=namespace), timeout=TIMEOUT_S)
    first = next(call)
    store(stubs, namespace, [types_pb2.MemoryInput(memory_id="late", text="too late")], stream_id="late")
    stubs.memory.DeleteMemory(memory_pb.DeleteMemoryRequest(namespace=namespace, memory_id="m299"))
    rest = list(call)
    records = [record for response in (first, *rest) for record in response.records]
    ids = {memory.memory_id for memory in memories_of(records)}
    assert ids == {f"m{n}" for n in range(300)}
    assert {response.total for response in (first, *rest)} == {len(records)}
    assert len({response.snapshot.token for response in (first, *rest)}) == 1
    assert [bool(response.cursor) for response in (first, *rest)] == [True] * len(rest) + [False]
    assert records[0].HasField("namespace")


def test_an_export_goes_on_at_any_cursor_also_after_the_server_was_killed(make_server: ServerMaker) -> None:
    server = make_server()
    stubs = server.start().connect()
    filled(stubs, "kept", 300)
    request = pb.ExportRequest(namespace="kept", include_embeddings=True)
    whole = list(stubs.admin.Export(request, timeout=TIMEOUT_S))
    server.kill()
    stubs = server.start().connect()
    store(stubs, "kept", [types_pb2.MemoryInput(text="came after the snapshot")], stream_id="later")
    for done in range(1, len(whole)):
        request.cursor = whole[done - 1].cursor
        rest = [r for response in stubs.admin.Export(request, timeout=TIMEOUT_S) for r in response.records]
        assert rest == [r for response in whole[done:] for r in response.records]


def test_a_cursor_of_another_export_is_refused_and_one_without_its_snapshot_is_gone(
    make_server: ServerMaker,
) -> None:
    server = make_server()
    stubs = server.start().connect()
    for name in ("one", "two"):
        filled(stubs, name, 200)
    call = stubs.admin.Export(pb.ExportRequest(namespace="one"), timeout=TIMEOUT_S)
    cursor = next(call).cursor
    call.cancel()
    for wrong in (
        pb.ExportRequest(namespace="two", cursor=cursor),
        pb.ExportRequest(namespace="one", cursor=cursor, include_embeddings=True),
        *(pb.ExportRequest(namespace="one", cursor=cursor[:-cut]) for cut in (1, 2, 3, 9)),
        pb.ExportRequest(namespace="one", cursor="nonsense"),
    ):
        status = _export_failure(stubs, wrong)
        assert (status.code, status.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "PAGE_TOKEN_MISMATCH")
    for directory in (server.data_dir / "exports").iterdir():
        for file in directory.iterdir():
            file.unlink()
        directory.rmdir()
    assert (
        _export_failure(stubs, pb.ExportRequest(namespace="one", cursor=cursor)).code
        is grpc.StatusCode.OUT_OF_RANGE
    )


def test_there_are_only_so_many_snapshots_and_finished_ones_make_room(make_server: ServerMaker) -> None:
    server = make_server(storage__export_snapshots_max="2")
    stubs = server.start().connect()
    filled(stubs, "full", 200)
    request = pb.ExportRequest(namespace="full")
    for _ in range(4):  # each is finished when the next begins
        list(stubs.admin.Export(request, timeout=TIMEOUT_S))
    assert len(list((server.data_dir / "exports").iterdir())) == 1
    for _ in range(2):
        call = stubs.admin.Export(request, timeout=TIMEOUT_S)
        next(call)
        call.cancel()
    status = _export_failure(stubs, request)
    assert (status.code, status.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
    assert status.retry_after_s


def test_snapshots_nobody_came_back_for_are_removed(make_server: ServerMaker) -> None:
    server = make_server(storage__export_snapshot_keep_s="0.001")
    stubs = server.start().connect()
    filled(stubs, "left", 100)
    call = stubs.admin.Export(pb.ExportRequest(namespace="left"), timeout=TIMEOUT_S)
    cursor = next(call).cursor
    call.cancel()
    server.terminate()
    stubs = server.start().connect()  # it sweeps at its start
    assert (
        _export_failure(stubs, pb.ExportRequest(namespace="left", cursor=cursor)).code
        is grpc.StatusCode.OUT_OF_RANGE
    )


def test_a_filter_and_embeddings_are_as_asked(stubs: Stubs, namespace: str) -> None:
    filled(stubs, namespace, 40)
    wanted = types_pb2.Filter(
        comparison=types_pb2.Comparison(
            field=types_pb2.FILTER_FIELD_TAG,
            op=types_pb2.FILTER_OPERATOR_EQ,
            value=types_pb2.AttributeValue(string_value="tag1"),
        )
    )
    memories = memories_of(export(stubs, namespace, filter=wanted))
    assert [m.memory_id for m in memories] == [f"m{n}" for n in range(40) if n % 4 == 1]
    assert not any(m.embedding for m in memories)
    assert all(m.embedding for m in memories_of(export(stubs, namespace, include_embeddings=True)))


def test_an_export_that_nobody_reads_costs_no_memory(make_server: ServerMaker) -> None:
    server = make_server(storage__export_snapshots_max="20")
    stubs = server.start().connect()
    items = [types_pb2.MemoryInput(text=f"{n} " + "x" * 12_000) for n in range(3000)]
    store(stubs, "large", items, level=memory_pb.ACK_LEVEL_DURABLE)
    process = psutil.Process(server.pid)
    list(stubs.admin.Export(pb.ExportRequest(namespace="large"), timeout=TIMEOUT_S))
    before = process.memory_info().rss
    stuck = [stubs.admin.Export(pb.ExportRequest(namespace="large"), timeout=TIMEOUT_S) for _ in range(10)]
    for call in stuck:
        next(call)
    grown = process.memory_info().rss - before
    for call in stuck:
        call.cancel()
    # Ten copies of 36 MB would be 360 MB.
    assert grown < 150_000_000


def _export_failure(stubs: Stubs, request: pb.ExportRequest) -> Any:
    with pytest.raises(grpc.RpcError) as told:
        list(stubs.admin.Export(request, timeout=TIMEOUT_S))
    return read(told.value)
