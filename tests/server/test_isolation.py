"""Namespaces never see each other, and values of callers are data, never syntax or paths."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import pytest
from clag.v1 import admin_service_pb2, cluster_service_pb2, types_pb2
from clag.v1 import memory_service_pb2 as pb

from tests.support.ingest import store, texts
from tests.support.process import ServerProcess, Stubs
from tests.support.reads import ask, clusters, get, listed
from tests.support.status import refused

HOSTILE = [
    '") or true or ("',
    "x'] or id not in ['zzz",
    "../../../../victim",
    "a%",
    "a_",
    '"; drop table memories; --',
    "$meta",
]

NAMESPACES = ["a", "a-1", "acme", "acme-corp"]


@pytest.fixture(scope="module")
def neighbours(stubs: Stubs) -> list[str]:
    """Namespaces whose names begin alike, each with one memory of the same words."""
    for name in NAMESPACES:
        store(stubs, name, texts(f"the charging dock is in {name.upper()}"))
    return NAMESPACES


@pytest.mark.parametrize("name", NAMESPACES)
def test_namespaces_with_similar_names_never_see_each_other(stubs: Stubs, neighbours: list[str], name: str) -> None:
    assert name in neighbours
    own = f"the charging dock is in {name.upper()}"
    assert [memory.text for memory in listed(stubs, name)] == [own]
    assert [hit.memory.text for hit in ask(stubs, name, "charging dock")] == [own]
    assert [cluster.memory_count for cluster in clusters(stubs, name)] == [1]
    stats = stubs.admin.GetStats(admin_service_pb2.GetStatsRequest(namespace=name), timeout=20)
    assert stats.memories.total == 1


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_tags_and_attributes_are_plain_data(
    stubs: Stubs, shared_server: ServerProcess, namespace: str, value: str
) -> None:
    attributes = {
        value: types_pb2.AttributeValue(string_value=value),
        "namespace": types_pb2.AttributeValue(string_value="a"),
        "id": types_pb2.AttributeValue(string_value="other"),
        "cluster_id": types_pb2.AttributeValue(string_value="c99"),
    }
    item = types_pb2.MemoryInput(
        text=f"note {value}", tags=[value], session_id=value, speaker=value, task=value, attributes=attributes
    )
    results = store(stubs, namespace, [item, types_pb2.MemoryInput(text="bystander")])
    memory = get(stubs, namespace, results[0].memory_id)
    assert (memory.text, list(memory.tags), memory.session_id) == (f"note {value}", [value], value)
    assert memory.attributes[value].string_value == value
    assert memory.attributes["cluster_id"].string_value == "c99"
    assert memory.cluster_id != "c99"
    for condition in (
        types_pb2.Comparison(
            field=types_pb2.FilterField.FILTER_FIELD_TAG,
            op=types_pb2.FilterOperator.FILTER_OPERATOR_EQ,
            value=types_pb2.AttributeValue(string_value=value),
        ),
        types_pb2.Comparison(
            attribute=value,
            op=types_pb2.FilterOperator.FILTER_OPERATOR_EQ,
            value=types_pb2.AttributeValue(string_value=value),
        ),
        types_pb2.Comparison(
            field=types_pb2.FilterField.FILTER_FIELD_SESSION_ID,
            op=types_pb2.FilterOperator.FILTER_OPERATOR_EQ,
            value=types_pb2.AttributeValue(string_value=value),
        ),
    ):
        request = pb.ListMemoriesRequest(namespace=namespace, filter=types_pb2.Filter(comparison=condition))
        found = stubs.memory.ListMemories(request, timeout=20).memories
        assert [one.memory_id for one in found] == [memory.memory_id]
    assert not (shared_server.root.parent / "victim").exists()


@pytest.mark.parametrize("value", [*HOSTILE, "", " ", "A", "-a", "a" * 64, "a/b", "a\nb"])
def test_a_name_that_is_no_namespace_is_refused_everywhere(stubs: Stubs, value: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: stubs.memory.GetMemory(pb.GetMemoryRequest(namespace=value, memory_id="m"), timeout=20),
        lambda: stubs.memory.DeleteMemory(pb.DeleteMemoryRequest(namespace=value, memory_id="m"), timeout=20),
        lambda: stubs.memory.ListMemories(pb.ListMemoriesRequest(namespace=value), timeout=20),
        lambda: stubs.memory.CreateMemory(
            pb.CreateMemoryRequest(namespace=value, memory=types_pb2.MemoryInput(text="x")), timeout=20
        ),
        lambda: stubs.cluster.ListClusters(cluster_service_pb2.ListClustersRequest(namespace=value), timeout=20),
    ]
    for call in calls:
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD") as failures:
            call()
        assert failures[0].fields == ("namespace",)


@pytest.mark.parametrize("value", ["", " ", *(value for value in HOSTILE if value != "a_")])
def test_a_delete_without_a_proper_id_deletes_nothing(stubs: Stubs, namespace: str, value: str) -> None:
    store(stubs, namespace, texts("one", "two"))
    request = pb.DeleteMemoryRequest(namespace=namespace, memory_id=value, allow_missing=True)
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD") as failures:
        stubs.memory.DeleteMemory(request, timeout=20)
    assert failures[0].fields == ("memory_id",)
    assert len(listed(stubs, namespace)) == 2


@pytest.mark.parametrize("value", ["", " "])
def test_an_empty_id_is_refused_wherever_one_is_needed(stubs: Stubs, namespace: str, value: str) -> None:
    calls: dict[str, Callable[[], object]] = {
        "memory_id": lambda: get(stubs, namespace, value),
        "cluster_id": lambda: stubs.cluster.GetCluster(
            cluster_service_pb2.GetClusterRequest(namespace=namespace, cluster_id=value), timeout=20
        ),
        "open.stream_id": lambda: store(stubs, namespace, texts("x"), stream_id=value),
        "open.namespace": lambda: store(stubs, value, texts("x")),
    }
    for field, call in calls.items():
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD") as failures:
            call()
        assert failures[0].fields == (field,)


def test_an_id_is_no_pattern(stubs: Stubs, namespace: str) -> None:
    store(stubs, namespace, [types_pb2.MemoryInput(text="kept", memory_id="ab")])
    with refused(grpc.StatusCode.NOT_FOUND, "NOT_FOUND"):
        stubs.memory.DeleteMemory(pb.DeleteMemoryRequest(namespace=namespace, memory_id="a_"), timeout=20)
    assert [memory.text for memory in listed(stubs, namespace)] == ["kept"]


def test_a_memory_of_another_namespace_is_not_found_and_not_deleted(stubs: Stubs, namespace: str) -> None:
    other = f"{namespace}-b"
    (mine,) = store(stubs, namespace, [types_pb2.MemoryInput(text="mine", memory_id="m-1")])
    store(stubs, other, texts("theirs"))
    with refused(grpc.StatusCode.NOT_FOUND, "NOT_FOUND"):
        get(stubs, other, mine.memory_id)
    request = pb.DeleteMemoryRequest(namespace=other, memory_id=mine.memory_id, allow_missing=True)
    assert not stubs.memory.DeleteMemory(request, timeout=20).deleted
    assert get(stubs, namespace, mine.memory_id).text == "mine"


def test_a_revision_of_another_namespace_is_refused(stubs: Stubs, namespace: str) -> None:
    other = f"{namespace}-b"
    created = stubs.memory.CreateMemory(
        pb.CreateMemoryRequest(namespace=namespace, memory=types_pb2.MemoryInput(text="x", memory_id="m")),
        timeout=20,
    )
    store(stubs, other, [types_pb2.MemoryInput(text="x", memory_id="m")])
    read = types_pb2.ReadOptions(at_least_as_fresh=created.revision)
    stubs.memory.GetMemory(pb.GetMemoryRequest(namespace=namespace, memory_id="m", read=read), timeout=20)
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD") as failures:
        stubs.memory.GetMemory(pb.GetMemoryRequest(namespace=other, memory_id="m", read=read), timeout=20)
    assert failures[0].fields == ("read.at_least_as_fresh.token",)


def test_a_page_token_continues_only_the_request_it_came_from(stubs: Stubs, namespace: str) -> None:
    store(stubs, namespace, texts("one", "two", "three"))
    store(stubs, f"{namespace}-b", texts("four", "five"))
    first = stubs.memory.ListMemories(pb.ListMemoriesRequest(namespace=namespace, page_size=2), timeout=20)
    assert len(first.memories) == 2
    by_speaker = types_pb2.Filter(
        comparison=types_pb2.Comparison(
            field=types_pb2.FilterField.FILTER_FIELD_SPEAKER,
            op=types_pb2.FilterOperator.FILTER_OPERATOR_EXISTS,
        )
    )
    for request in (
        pb.ListMemoriesRequest(namespace=f"{namespace}-b", page_token=first.next_page_token),
        pb.ListMemoriesRequest(namespace=namespace, filter=by_speaker, page_token=first.next_page_token),
        pb.ListMemoriesRequest(namespace=namespace, page_token="made up"),
        pb.ListMemoriesRequest(namespace=namespace, page_token=first.next_page_token + "x"),
    ):
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "PAGE_TOKEN_MISMATCH"):
            stubs.memory.ListMemories(request, timeout=20)
    assert [memory.text for memory in listed(stubs, namespace, page_size=2)] == ["one", "two", "three"]
