"""Namespaces over the socket: created, set, deleted while streams are open."""

from __future__ import annotations

import grpc
import pytest
from clag.v1 import admin_service_pb2 as pb
from clag.v1 import types_pb2
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask

from tests.conftest import ServerMaker
from tests.support.ingest import IngestStream, store, texts
from tests.support.process import Stubs
from tests.support.reads import ask, get, listed
from tests.support.status import read


def create(stubs: Stubs, namespace: str, **settings: object) -> pb.Namespace:
    request = pb.CreateNamespaceRequest(namespace=namespace, settings=pb.NamespaceSettings(**settings))  # type: ignore[arg-type]
    return stubs.admin.CreateNamespace(request, timeout=20).namespace


def delete(stubs: Stubs, namespace: str) -> pb.Operation:
    """Delete a namespace and wait for the end; returns the operation as it ended."""
    begun = stubs.admin.DeleteNamespace(pb.DeleteNamespaceRequest(namespace=namespace), timeout=20).operation
    watch = pb.WatchOperationRequest(operation_id=begun.operation_id)
    return list(stubs.admin.WatchOperation(watch, timeout=30))[-1].operation


def test_a_created_namespace_is_read_listed_and_not_created_twice(stubs: Stubs, namespace: str) -> None:
    made = create(stubs, namespace, purpose="fetch crates", default_time_to_live=Duration(seconds=60))
    assert made.settings.purpose == "fetch crates"
    assert not made.settings.HasField("auto_reorganize")
    assert made.embedding_model == "scripted-embedder"
    assert stubs.admin.GetNamespace(pb.GetNamespaceRequest(namespace=namespace)).namespace == made
    assert made in stubs.admin.ListNamespaces(pb.ListNamespacesRequest(page_size=1000)).namespaces
    with pytest.raises(grpc.RpcError) as raised:
        create(stubs, namespace)
    assert raised.value.code() is grpc.StatusCode.ALREADY_EXISTS
    assert read(raised.value).reason == "ALREADY_EXISTS"


def test_another_embedder_than_the_servers_is_refused(stubs: Stubs, namespace: str) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        stubs.admin.CreateNamespace(pb.CreateNamespaceRequest(namespace=namespace, embedding_model="other"))
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert read(raised.value).reason == "MODEL_MISMATCH"


def test_masked_settings_change_and_unset_ones_go_back_to_the_default(stubs: Stubs, namespace: str) -> None:
    made = create(stubs, namespace, purpose="fetch", auto_reorganize=True)

    def update(*paths: str, etag: str = "", **settings: object) -> pb.Namespace:
        request = pb.UpdateNamespaceRequest(
            namespace=namespace,
            settings=pb.NamespaceSettings(**settings),  # type: ignore[arg-type]
            update_mask=FieldMask(paths=paths),
            etag=etag,
        )
        return stubs.admin.UpdateNamespace(request, timeout=20).namespace

    changed = update("auto_reorganize", "routing_unit", etag=made.etag, routing_unit=pb.ROUTING_UNIT_MEMORY)
    assert changed.settings == pb.NamespaceSettings(purpose="fetch", routing_unit=pb.ROUTING_UNIT_MEMORY)
    with pytest.raises(grpc.RpcError) as raised:
        update("purpose", etag=made.etag)
    assert read(raised.value).reason == "ETAG_MISMATCH"
    with pytest.raises(grpc.RpcError) as unknown:
        update("purposes")
    assert read(unknown.value).fields == ("update_mask.paths[0]",)


def test_memories_get_the_time_to_live_of_their_namespace(stubs: Stubs, namespace: str) -> None:
    create(stubs, namespace, default_time_to_live=Duration(seconds=3600))
    store(stubs, namespace, [types_pb2.MemoryInput(memory_id="m", text="fades")])
    memory = get(stubs, namespace, "m")
    assert memory.expire_time.seconds - memory.create_time.seconds == 3600


def test_a_deleted_namespace_ends_its_streams_and_leaves_nothing_to_its_successor(
    stubs: Stubs, namespace: str
) -> None:
    store(stubs, namespace, texts("the red crate", "the blue barrel"))
    with IngestStream(stubs, namespace, "open") as stream:
        stream.batch(texts("one more"))
        stream.acked()
        end = delete(stubs, namespace)
        assert end.state == pb.OPERATION_STATE_SUCCEEDED
        error = stream.failure()
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert read(error).reason == "NAMESPACE_DELETED"
    with pytest.raises(grpc.RpcError) as raised:
        ask(stubs, namespace, "crate")
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND
    store(stubs, namespace, texts("the green box"))
    assert [memory.text for memory in listed(stubs, namespace)] == ["the green box"]
    assert [hit.memory.text for hit in ask(stubs, namespace, "red crate blue barrel")] == ["the green box"]


def test_other_namespaces_keep_theirs_when_one_is_deleted(stubs: Stubs, namespace: str) -> None:
    near = f"{namespace}-1"
    store(stubs, namespace, texts("the red crate"))
    store(stubs, near, texts("the blue barrel"))
    delete(stubs, namespace)
    assert [hit.memory.text for hit in ask(stubs, near, "barrel")] == ["the blue barrel"]


def test_the_limit_of_namespaces_holds_for_calls_that_would_make_one(make_server: ServerMaker) -> None:
    server = make_server(ingest__max_namespaces="1").start()
    stubs = server.connect()
    store(stubs, "first", texts("a note"))
    with pytest.raises(grpc.RpcError) as raised:
        create(stubs, "second")
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert read(raised.value).reason == "NAMESPACE_LIMIT"
