"""DeleteMemories and what a delete leaves behind: nothing."""

from __future__ import annotations

import grpc
import pytest
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2

from tests.support.ingest import store
from tests.support.process import Stubs
from tests.support.reads import ask, clusters, get, listed


def with_tag(tag: str) -> types_pb2.Filter:
    return types_pb2.Filter(
        comparison=types_pb2.Comparison(
            field=types_pb2.FILTER_FIELD_TAG,
            op=types_pb2.FILTER_OPERATOR_EQ,
            value=types_pb2.AttributeValue(string_value=tag),
        )
    )


def delete(
    stubs: Stubs, namespace: str, where: types_pb2.Filter | None, *, dry_run: bool = False, timeout: float = 30
) -> pb.DeleteMemoriesResponse:
    request = pb.DeleteMemoriesRequest(namespace=namespace, filter=where, dry_run=dry_run)
    return stubs.memory.DeleteMemories(request, timeout=timeout)


def items(count: int, tag: str, text: str = "crate number") -> list[types_pb2.MemoryInput]:
    return [types_pb2.MemoryInput(text=f"{text} {i}", tags=[tag], memory_id=f"{tag}{i}") for i in range(count)]


def test_a_delete_of_more_than_one_batch_leaves_none_and_nothing_else_goes(stubs: Stubs, namespace: str) -> None:
    store(stubs, namespace, items(600, "old"), level=pb.ACK_LEVEL_DURABLE)
    store(stubs, namespace, items(3, "new", "barrel number"), stream_id="n")
    dry = delete(stubs, namespace, with_tag("old"), dry_run=True)
    assert (dry.matched, dry.deleted) == (600, 0)
    deleted = 0
    while True:
        done = delete(stubs, namespace, with_tag("old"))
        deleted += done.deleted
        if done.complete:
            break
    assert deleted == 600
    assert delete(stubs, namespace, with_tag("old"), dry_run=True).matched == 0
    assert {memory.memory_id for memory in listed(stubs, namespace)} == {"new0", "new1", "new2"}
    assert {hit.memory.memory_id for hit in ask(stubs, namespace, "crate number 7")} <= {"new0", "new1", "new2"}


def test_nothing_is_deleted_without_a_whole_filter(stubs: Stubs, namespace: str) -> None:
    store(stubs, namespace, items(2, "kept"))
    hollow = types_pb2.Filter(all=types_pb2.FilterList())
    for where in (None, types_pb2.Filter(), hollow, types_pb2.Filter(negation=types_pb2.Filter())):
        with pytest.raises(grpc.RpcError) as raised:
            delete(stubs, namespace, where)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert len(listed(stubs, namespace)) == 2


def test_a_delete_that_matches_nothing_is_complete(stubs: Stubs, namespace: str) -> None:
    store(stubs, namespace, items(1, "kept"))
    done = delete(stubs, namespace, with_tag('") or true or ("'))
    assert (done.matched, done.deleted, done.complete) == (0, 0, True)


def test_a_deleted_memory_is_out_of_search_links_and_profiles(stubs: Stubs, namespace: str) -> None:
    same = "the zeppelin is moored at the mast"
    store(
        stubs,
        namespace,
        [
            types_pb2.MemoryInput(memory_id="a", text=same, tags=["secret"]),
            types_pb2.MemoryInput(memory_id="b", text=f"{same} again"),
        ],
        level=pb.ACK_LEVEL_ORGANIZED,
    )
    assert [link.memory_id for link in get(stubs, namespace, "b").links] == ["a"]
    delete(stubs, namespace, with_tag("secret"))
    assert not get(stubs, namespace, "b").links
    assert [hit.memory.memory_id for hit in ask(stubs, namespace, same)] == ["b"]
    delete_all = types_pb2.Filter(negation=with_tag("none"))
    delete(stubs, namespace, delete_all)
    assert clusters(stubs, namespace) == []
