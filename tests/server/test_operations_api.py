"""Operations over the socket: begun, read, listed, watched to their end."""

from __future__ import annotations

import grpc
import pytest
from clag.v1 import admin_service_pb2 as pb

from tests.support.ingest import store, texts
from tests.support.process import Stubs
from tests.support.reads import ask
from tests.support.status import read


def reindex(stubs: Stubs, namespace: str, model: str = "") -> pb.Operation:
    request = pb.ReindexRequest(namespace=namespace, embedding_model=model)
    return stubs.admin.Reindex(request, timeout=20).operation


def watched(stubs: Stubs, operation: pb.Operation) -> list[pb.Operation]:
    request = pb.WatchOperationRequest(operation_id=operation.operation_id)
    return [response.operation for response in stubs.admin.WatchOperation(request, timeout=60)]


def test_a_rebuild_is_watched_to_its_end_and_the_namespace_answers_after_it(stubs: Stubs, namespace: str) -> None:
    store(stubs, namespace, texts("the red crate", "the blue barrel"))
    begun = reindex(stubs, namespace)
    assert begun.kind == pb.OPERATION_KIND_REINDEX
    end = watched(stubs, begun)[-1]
    assert end.state == pb.OPERATION_STATE_SUCCEEDED
    assert end.HasField("end_time")
    assert end.reindex == pb.ReindexResult(memories=2, embedding_model="scripted-embedder")
    assert ask(stubs, namespace, "red crate")[0].memory.text == "the red crate"
    read = stubs.admin.GetOperation(pb.GetOperationRequest(operation_id=begun.operation_id), timeout=20)
    assert read.operation == end
    cancelled = stubs.admin.CancelOperation(pb.CancelOperationRequest(operation_id=begun.operation_id), timeout=20)
    assert cancelled.operation == end


def test_operations_are_listed_newest_first_page_by_page(stubs: Stubs, namespace: str) -> None:
    store(stubs, namespace, texts("the red crate"))
    begun = []
    for _ in range(3):
        operation = reindex(stubs, namespace)
        watched(stubs, operation)
        begun.append(operation.operation_id)
    found: list[str] = []
    token = ""
    while True:
        page = stubs.admin.ListOperations(
            pb.ListOperationsRequest(namespace=namespace, page_size=2, page_token=token), timeout=20
        )
        found += [operation.operation_id for operation in page.operations]
        token = page.next_page_token
        if not token:
            break
    assert found == begun[::-1]


def test_an_unknown_operation_is_not_found(stubs: Stubs) -> None:
    for call in (
        lambda: stubs.admin.GetOperation(pb.GetOperationRequest(operation_id="op-none"), timeout=20),
        lambda: stubs.admin.CancelOperation(pb.CancelOperationRequest(operation_id="op-none"), timeout=20),
        lambda: list(stubs.admin.WatchOperation(pb.WatchOperationRequest(operation_id="op-none"), timeout=20)),
    ):
        with pytest.raises(grpc.RpcError) as raised:
            call()
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_rebuild_for_a_model_that_is_not_loaded_is_refused(stubs: Stubs, namespace: str) -> None:
    store(stubs, namespace, texts("the red crate"))
    with pytest.raises(grpc.RpcError) as raised:
        reindex(stubs, namespace, "another-model")
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert read(raised.value).reason == "MODEL_MISMATCH"
