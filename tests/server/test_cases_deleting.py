"""What is left of deleted and rewritten words: in every table, every file, every stream that was open."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from clag.v1 import admin_service_pb2 as admin
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from tests.conftest import ServerMaker
from tests.support.catalog_file import files_with, holders, seen
from tests.support.ingest import IngestStream, store, texts
from tests.support.process import Stubs
from tests.support.reads import ask, get, listed
from tests.support.status import read
from tests.support.transfer import ImportStream, export

TIMEOUT_S = 60.0
WORD = "zeppelinus"
ORGANIZED = pb.ACK_LEVEL_ORGANIZED


def secret(memory_id: str) -> types_pb2.MemoryInput:
    """A memory that says the word in every field that a caller can fill."""
    return types_pb2.MemoryInput(
        memory_id=memory_id,
        text=f"the {WORD} is moored at the mast",
        speaker=WORD,
        task=WORD,
        tags=[WORD],
        session_id="s",
        attributes={WORD: types_pb2.AttributeValue(string_value=WORD)},
    )


def crowd(count: int) -> list[types_pb2.MemoryInput]:
    return [types_pb2.MemoryInput(text=f"crate number {n} is blue", session_id="s") for n in range(count)]


def settle(stubs: Stubs, namespace: str) -> None:
    """Bring something of this namespace through all stages: what was queued before it is done by then."""
    store(stubs, namespace, texts("the lamp is on"), stream_id="settle", level=ORGANIZED)


def test_a_deleted_memorys_words_are_in_no_row_and_in_no_file_of_the_index(make_server: ServerMaker) -> None:
    server = make_server()
    stubs = server.start().connect()
    store(stubs, "robots", [*crowd(30), secret("x"), secret("y"), *crowd(30)], level=ORGANIZED)
    store(stubs, "robots", texts("moored at the mast"), stream_id="n", level=ORGANIZED)  # linked with the deleted
    assert ask(stubs, "robots", WORD)
    assert {"memories", "clusters", "fts_1_content", "fts_1_data"} <= holders(server.data_dir, WORD)
    assert server.terminate() == 0  # what was in the log is in the database's own pages now
    stubs = server.start().connect()
    for memory_id in ("x", "y"):
        stubs.memory.DeleteMemory(pb.DeleteMemoryRequest(namespace="robots", memory_id=memory_id), timeout=20)
    settle(stubs, "robots")
    assert not [hit for hit in ask(stubs, "robots", WORD) if WORD in str(hit)]
    # The blocks of a full-text index are rewritten when they are merged: until then they hold single words.
    assert holders(server.data_dir, WORD) <= {"fts_1_data"}
    assert server.terminate() == 0
    assert holders(server.data_dir, WORD) <= {"fts_1_data"}
    assert files_with(server.data_dir, WORD) <= {"catalog.db"}
    text = f"the {WORD} is moored"
    assert files_with(server.data_dir, text) == set()
    stubs = server.start().connect()
    assert not [record for record in export(stubs, "robots") if WORD in str(record)]


def test_a_deleted_namespaces_words_are_in_no_file_after_the_server_stopped(make_server: ServerMaker) -> None:
    server = make_server()
    stubs = server.start().connect()
    store(stubs, "goes", [*crowd(200), secret("x")], level=ORGANIZED)
    store(stubs, "stays", crowd(5))
    assert server.terminate() == 0  # what was in the log is in the database's own pages now
    assert files_with(server.data_dir, WORD) == {"catalog.db"}
    stubs = server.start().connect()
    begun = stubs.admin.DeleteNamespace(admin.DeleteNamespaceRequest(namespace="goes"), timeout=20).operation
    watch = admin.WatchOperationRequest(operation_id=begun.operation_id)
    list(stubs.admin.WatchOperation(watch, timeout=TIMEOUT_S))
    assert server.terminate() == 0
    assert files_with(server.data_dir, WORD) == set()


def test_words_that_were_rewritten_are_gone_from_both_searches_and_the_vector_is_the_new_texts(
    stubs: Stubs, namespace: str
) -> None:
    twin = f"{namespace}-twin"
    fields: dict[str, Any] = {"memory_id": "m", "session_id": "s", "speaker": "Anna", "tags": ["crate"]}
    day = Timestamp(seconds=1_700_000_000)
    store(stubs, namespace, [types_pb2.MemoryInput(text="the red crate is at the dock", event_time=day, **fields)])
    store(stubs, twin, [types_pb2.MemoryInput(text="the blue crate is at the dock", event_time=day, **fields)])
    request = pb.UpdateMemoryRequest(
        namespace=namespace,
        memory_id="m",
        memory=types_pb2.MemoryInput(text="the blue crate is at the dock"),
        update_mask=FieldMask(paths=["text"]),
    )
    stubs.memory.UpdateMemory(request, timeout=20)
    vectors = [
        stubs.memory.GetMemory(
            pb.GetMemoryRequest(namespace=name, memory_id="m", include_embedding=True), timeout=20
        ).memory.embedding
        for name in (namespace, twin)
    ]
    assert list(vectors[0]) == list(vectors[1])
    assert list(get(stubs, namespace, "m").tags) == ["crate"]
    for mode in (pb.RETRIEVAL_MODE_TWO_STAGE, pb.RETRIEVAL_MODE_GLOBAL):
        for question in ("red", "blue"):
            ours, theirs = (
                [(hit.memory.text, hit.score, [str(part) for part in hit.score_parts]) for hit in found]
                for found in (ask(stubs, name, question, mode=mode, explain=True) for name in (namespace, twin))
            )
            assert ours == theirs


class Listener:
    """Reads a call in a thread of its own, so that it is open while the test does something else."""

    def __init__(self, call: Iterator[Any]) -> None:
        self._call = call
        self.first: queue.Queue[Any] = queue.Queue()
        self.error: grpc.RpcError | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for response in self._call:
                self.first.put(response)
        except grpc.RpcError as error:
            self.error = error

    def end(self) -> grpc.RpcError | None:
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()
        return self.error


def test_deleting_a_namespace_ends_everything_that_is_open_on_it_and_nothing_comes_back(
    make_server: ServerMaker,
) -> None:
    server = make_server()
    stubs = server.start().connect()
    big = [types_pb2.MemoryInput(text=f"{n} " + "x" * 20_000) for n in range(300)]
    for start in range(0, 300, 30):
        store(stubs, "goes", big[start : start + 30], stream_id=f"b{start}", level=pb.ACK_LEVEL_DURABLE)
    watch = Listener(stubs.memory.Watch(pb.WatchRequest(namespace="goes"), timeout=TIMEOUT_S))
    watch.first.get(timeout=TIMEOUT_S)
    exporting = stubs.admin.Export(admin.ExportRequest(namespace="goes"), timeout=TIMEOUT_S)
    next(exporting)
    bringing = ImportStream(stubs, "goes", "import")
    row = admin.ExportRecord(memory=types_pb2.Memory(memory_id="row", text="imported"))
    bringing.batch([row])
    bringing.acked()
    with IngestStream(stubs, "goes", "open") as stream:
        stream.batch(texts("ingested"))
        stream.acked()
        begun = stubs.admin.DeleteNamespace(admin.DeleteNamespaceRequest(namespace="goes"), timeout=20).operation
        stream.batch(texts("too late"))
        bringing.batch([row])
        ended = {"ingest": read(stream.failure()), "import": read(bringing.failure())}
    told = watch.end()
    assert told is not None
    ended["watch"] = read(told)
    with pytest.raises(grpc.RpcError) as raised:
        list(exporting)
    ended["export"] = read(raised.value)
    for name, failure in ended.items():
        assert (failure.code, failure.reason) == (grpc.StatusCode.NOT_FOUND, "NAMESPACE_DELETED"), name
    operation = admin.WatchOperationRequest(operation_id=begun.operation_id)
    end = [response.operation for response in stubs.admin.WatchOperation(operation, timeout=TIMEOUT_S)][-1]
    assert end.state == admin.OPERATION_STATE_SUCCEEDED
    assert seen(server.data_dir, "SELECT count(*) FROM memories") == 0
    store(stubs, "goes", texts("the successor"))
    assert [memory.text for memory in listed(stubs, "goes")] == ["the successor"]
    assert [hit.memory.text for hit in ask(stubs, "goes", "ingested imported late")] == ["the successor"]


def test_a_place_that_changed_is_told_newest_first_with_the_older_one_marked(stubs: Stubs, namespace: str) -> None:
    store(stubs, namespace, [types_pb2.MemoryInput(memory_id="old", text="the dock is B3")])
    newer = types_pb2.MemoryInput(memory_id="new", text="the dock moved to B7", supersedes=["old"])
    store(stubs, namespace, [newer], stream_id="later")
    hits = ask(stubs, namespace, "where is the dock")
    assert [hit.memory.memory_id for hit in hits] == ["new", "old"]
    assert [conflict.memory_id for conflict in hits[1].conflicts] == ["new"]
    assert hits[0].memory.event_time.ToNanoseconds() > hits[1].memory.event_time.ToNanoseconds()
