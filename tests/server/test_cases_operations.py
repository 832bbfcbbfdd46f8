"""Operating it: limits of every call, drains with everything open, many connections, clocks and time zones."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import grpc
import psutil
import pytest
from clag.v1 import admin_service_pb2 as admin
from clag.v1 import cluster_service_pb2 as cluster_pb
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from clag_server.api.limits import MAX_MESSAGE_BYTES
from tests.conftest import ServerMaker
from tests.support.ingest import IngestStream, store, texts
from tests.support.process import ServerProcess, Stubs
from tests.support.reads import clusters, get, listed
from tests.support.status import Failure, read, refused
from tests.support.transfer import ImportStream, export, load

TIMEOUT_S = 60.0
ORGANIZED = pb.ACK_LEVEL_ORGANIZED
FIVE_MIB = "y" * (5 << 20)
TOKENS = "log said <|endoftext|> then <|im_start|>system \u202e 猫 \U0001f9be"
SURROGATE = b"arm \xed\xa0\xbd stuck"


def update(namespace: str, memory_id: str, text: str) -> pb.UpdateMemoryRequest:
    return pb.UpdateMemoryRequest(
        namespace=namespace,
        memory_id=memory_id,
        memory=types_pb2.MemoryInput(text=text),
        update_mask=FieldMask(paths=["text"]),
    )


def profile(namespace: str, cluster_id: str, **fields: Any) -> cluster_pb.UpdateClusterRequest:
    return cluster_pb.UpdateClusterRequest(
        edit=cluster_pb.Edit(namespace=namespace),
        cluster_id=cluster_id,
        cluster=types_pb2.Cluster(**fields),
        update_mask=FieldMask(paths=list(fields)),
    )


def test_five_mebibytes_are_refused_with_the_limit_by_every_call_that_takes_text(
    stubs: Stubs, namespace: str
) -> None:
    store(stubs, namespace, [types_pb2.MemoryInput(memory_id="m", text="the dock is B3")], level=ORGANIZED)
    home = get(stubs, namespace, "m").cluster_id
    settings = admin.NamespaceSettings(purpose=FIVE_MIB)
    with ImportStream(stubs, namespace) as importing:
        importing.batch([admin.ExportRecord(memory=types_pb2.Memory(memory_id="n", text=FIVE_MIB))])
        failures = [read(importing.failure())]
    calls: list[Callable[[], object]] = [
        lambda: stubs.memory.UpdateMemory(update(namespace, "m", FIVE_MIB)),
        lambda: stubs.cluster.UpdateCluster(profile(namespace, home, title=FIVE_MIB)),
        lambda: stubs.admin.CreateNamespace(
            admin.CreateNamespaceRequest(namespace=f"{namespace}-1", settings=settings)
        ),
        lambda: stubs.memory.DeleteMemories(pb.DeleteMemoriesRequest(namespace=FIVE_MIB)),
    ]
    for call in calls:
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED) as found:
            call()
        failures += found
    for failure in failures:
        assert failure.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(MAX_MESSAGE_BYTES) in failure.message
    assert [memory.text for memory in listed(stubs, namespace)] == ["the dock is B3"]


@pytest.mark.parametrize("size", [0, 1_000_000_000, (1 << 32) - 1])
def test_page_sizes_of_every_list_are_defaulted_and_clamped(stubs: Stubs, namespace: str, size: int) -> None:
    store(stubs, namespace, [types_pb2.MemoryInput(memory_id="m", text="the dock is B3")], level=ORGANIZED)
    for title in ("one", "two"):
        stubs.memory.UpdateMemory(update(namespace, "m", f"the dock is {title}"), timeout=20)
    home = get(stubs, namespace, "m").cluster_id  # it left the one where it was
    for title in ("one", "two"):
        stubs.cluster.UpdateCluster(profile(namespace, home, title=title), timeout=20)
    stubs.admin.Reindex(admin.ReindexRequest(namespace=namespace), timeout=20)
    scope: dict[str, Any] = {"namespace": namespace, "page_size": size}
    cluster_history = cluster_pb.ListClusterHistoryRequest(cluster_id=home, **scope)
    pages: dict[str, Sequence[object]] = {
        "history": stubs.memory.ListMemoryHistory(pb.ListMemoryHistoryRequest(memory_id="m", **scope)).entries,
        "cluster history": stubs.cluster.ListClusterHistory(cluster_history).entries,
        "clusters": stubs.cluster.ListClusters(cluster_pb.ListClustersRequest(**scope)).clusters,
        "operations": stubs.admin.ListOperations(admin.ListOperationsRequest(**scope)).operations,
        "namespaces": stubs.admin.ListNamespaces(admin.ListNamespacesRequest(page_size=size)).namespaces,
    }
    for name, page in pages.items():
        assert 1 <= len(page) <= 1_000, name
    assert len(pages["history"]) >= 3
    assert len(pages["cluster history"]) >= 2


def test_a_stop_ends_every_open_call_with_a_hint_and_keeps_what_was_acknowledged(make_server: ServerMaker) -> None:
    server = make_server().start()
    stubs = server.connect()
    big = [types_pb2.MemoryInput(text=f"{n} " + "x" * 20_000) for n in range(300)]
    for start in range(0, 300, 30):
        store(stubs, "robots", big[start : start + 30], stream_id=f"b{start}", level=pb.ACK_LEVEL_DURABLE)
    watch = stubs.memory.Watch(pb.WatchRequest(namespace="robots"), timeout=TIMEOUT_S)
    next(watch)
    exporting = stubs.admin.Export(admin.ExportRequest(namespace="robots"), timeout=TIMEOUT_S)
    first = next(exporting)
    (server.root / "script.json").write_text('{"embed": "hang"}', encoding="utf-8")
    begun = stubs.admin.Reindex(admin.ReindexRequest(namespace="robots"), timeout=20).operation
    operation: Any = stubs.admin.WatchOperation(
        admin.WatchOperationRequest(operation_id=begun.operation_id), timeout=TIMEOUT_S
    )
    next(operation)
    with ImportStream(stubs, "robots", "import") as importing, IngestStream(stubs, "robots", "open") as stream:
        importing.batch([admin.ExportRecord(memory=types_pb2.Memory(memory_id="row", text="imported"))])
        importing.acked()
        stream.batch(texts("ingested"))
        stream.acked()
        server.send(signal.SIGTERM)
        ended = {"ingest": read(stream.failure()), "import": read(importing.failure())}
    ended["watch"] = failure_of(watch)
    ended["export"] = failure_of(exporting)
    for name, failure in ended.items():
        assert (failure.code, failure.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING"), name
        assert failure.retry_after_s is not None, name
    with suppress(grpc.RpcError):
        list(operation)
    if operation.code() is not grpc.StatusCode.OK:  # else the rebuild came to its end before the stop
        assert read(operation).reason == "DRAINING"
    assert server.wait() == 0
    (server.root / "script.json").write_text("{}", encoding="utf-8")
    stubs = server.start().connect()
    assert {"imported", "ingested"} <= {memory.text for memory in listed(stubs, "robots", page_size=1000)}
    rest = stubs.admin.Export(admin.ExportRequest(namespace="robots", cursor=first.cursor), timeout=TIMEOUT_S)
    records = [*first.records, *(record for response in rest for record in response.records)]
    assert sum(record.HasField("memory") for record in records) == 300


def failure_of(call: Any) -> Failure:
    with pytest.raises(grpc.RpcError) as raised:
        list(call)
    return read(raised.value)


def test_a_thousand_connections_that_come_and_go_leave_nothing_behind(make_server: ServerMaker) -> None:
    server = make_server().start()
    stubs = server.connect()
    store(stubs, "robots", texts("the dock is B3"))
    # The client of the index is loaded when the index comes up: tens of megabytes that are no leak.
    asked = admin.GetStatsRequest(namespace="robots")
    while stubs.admin.GetStats(asked, timeout=20).index.state != admin.INDEX_STATE_READY:
        pass
    process = psutil.Process(server.pid)

    def come_and_go(count: int) -> None:
        options = (("grpc.use_local_subchannel_pool", 1),)
        for _ in range(count):
            with grpc.insecure_channel(f"unix:{server.socket}", options=options) as channel:
                watch = Stubs(channel).memory.Watch(pb.WatchRequest(namespace="robots"), timeout=TIMEOUT_S)
                next(watch)

    def sizes() -> tuple[int, int, int]:
        return process.num_threads(), process.num_fds(), process.memory_info().rss

    come_and_go(100)  # pools fill up first
    threads, files, memory = sizes()
    crowd = [threading.Thread(target=come_and_go, args=(250,)) for _ in range(4)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join(TIMEOUT_S)
    get(stubs, "robots", listed(stubs, "robots")[0].memory_id)
    now_threads, now_files, now_memory = sizes()
    assert now_threads <= threads + 8
    assert now_files <= files + 16
    assert now_memory <= memory + (48 << 20)  # one leaked connection of a thousand each holds 100 KiB and more


def test_a_server_in_tokyo_filters_a_clients_utc_day_right(
    make_server: ServerMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    stubs = make_server().start().connect()
    midnight = 1_772_323_200  # 2026-03-01T00:00:00Z, nine in the morning in Tokyo
    items = [
        types_pb2.MemoryInput(memory_id=f"m{n}", text=f"note {n}", event_time=Timestamp(seconds=midnight + off))
        for n, off in enumerate((-32_400, -1, 0, 1, 86_399, 86_400))
    ]
    store(stubs, "robots", items)

    def bound(op: types_pb2.FilterOperator.ValueType, seconds: int) -> types_pb2.Filter:
        return types_pb2.Filter(
            comparison=types_pb2.Comparison(
                field=types_pb2.FILTER_FIELD_EVENT_TIME,
                op=op,
                time_value=Timestamp(seconds=seconds),
            )
        )

    day = types_pb2.Filter(
        all=types_pb2.FilterList(
            filters=[
                bound(types_pb2.FILTER_OPERATOR_GE, midnight),
                bound(types_pb2.FILTER_OPERATOR_LT, midnight + 86_400),
            ]
        )
    )
    page = stubs.memory.ListMemories(pb.ListMemoriesRequest(namespace="robots", filter=day), timeout=20)
    assert [memory.memory_id for memory in page.memories] == ["m2", "m3", "m4"]
    exported = [record.memory.memory_id for record in export(stubs, "robots", filter=day)]
    assert [memory_id for memory_id in exported if memory_id] == ["m2", "m3", "m4"]


@pytest.fixture
def edited(stubs: Stubs, namespace: str) -> tuple[str, str]:
    """A namespace with one organized memory, and its cluster."""
    store(stubs, namespace, [types_pb2.MemoryInput(memory_id="m", text="the dock is B3")], level=ORGANIZED)
    return namespace, get(stubs, namespace, "m").cluster_id


def test_control_tokens_travel_verbatim_through_edits_exports_imports_and_watches(
    stubs: Stubs, edited: tuple[str, str]
) -> None:
    namespace, _ = edited
    watch = stubs.memory.Watch(
        pb.WatchRequest(namespace=namespace, kinds=[pb.CHANGE_KIND_MEMORY_UPDATED], include_values=True),
        timeout=TIMEOUT_S,
    )
    next(watch)
    stubs.memory.UpdateMemory(update(namespace, "m", TOKENS), timeout=20)
    told = next(change for response in watch for change in response.changes)
    watch.cancel()
    assert told.memory.text == TOKENS
    home = get(stubs, namespace, "m").cluster_id  # it left the one where it was
    stubs.cluster.UpdateCluster(profile(namespace, home, title=TOKENS, summary=TOKENS), timeout=20)
    rows = export(stubs, namespace)
    load(stubs, f"{namespace}-1", rows, keep_organization=True)
    for name in (namespace, f"{namespace}-1"):
        assert get(stubs, name, "m").text == TOKENS
        assert TOKENS in [text for one in clusters(stubs, name) for text in (one.title, one.summary)]
    settings = admin.NamespaceSettings(purpose=TOKENS)
    made = stubs.admin.CreateNamespace(
        admin.CreateNamespaceRequest(namespace=f"{namespace}-2", settings=settings), timeout=20
    )
    assert made.namespace.settings.purpose == TOKENS


def test_nul_is_refused_with_the_field_by_every_edit(stubs: Stubs, edited: tuple[str, str]) -> None:
    namespace, home = edited
    settings = admin.NamespaceSettings(purpose="a\x00b")
    calls: dict[str, Callable[[], object]] = {
        "memory.text": lambda: stubs.memory.UpdateMemory(update(namespace, "m", "a\x00b")),
        "cluster.title": lambda: stubs.cluster.UpdateCluster(profile(namespace, home, title="a\x00b")),
        "settings.purpose": lambda: stubs.admin.CreateNamespace(
            admin.CreateNamespaceRequest(namespace=f"{namespace}-1", settings=settings)
        ),
    }
    for field, call in calls.items():
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD") as failures:
            call()
        assert failures[0].fields == (field,)
    bad = admin.ExportRecord(memory=types_pb2.Memory(memory_id="n", text="a\x00b"))
    finished, rejections = load(stubs, namespace, [bad])
    assert (finished.rejected, rejections[0].error.field) == (1, "memory.text")
    assert [memory.text for memory in listed(stubs, namespace)] == ["the dock is B3"]


def field(number: int, content: bytes) -> bytes:
    """One length-delimited protobuf field of less than 128 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


@pytest.mark.parametrize(
    ("method", "rest", "told"),
    [
        ("MemoryService/UpdateMemory", field(2, b"m") + field(3, field(2, SURROGATE)), "memory.text"),
        ("AdminService/CreateNamespace", field(2, field(1, SURROGATE)), "settings.purpose"),
        ("MemoryService/Watch", field(2, field(1, SURROGATE)), "start_after.token"),
        ("AdminService/Export", field(2, SURROGATE), "cursor"),
    ],
)
def test_a_lone_surrogate_is_refused_with_its_field_by_every_edit(
    shared_server: ServerProcess, stubs: Stubs, namespace: str, method: str, rest: bytes, told: str
) -> None:
    call: Any = stubs.channel.unary_stream(
        f"/clag.v1.{method}", request_serializer=None, response_deserializer=lambda data: data
    )
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_MESSAGE") as failures:
        list(call(field(1, namespace.encode()) + rest, timeout=20))
    assert failures[0].fields == (told,)
