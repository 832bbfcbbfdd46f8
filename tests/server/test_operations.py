"""What operators and clients meet: limits, health, what is served, reads after writes."""

from __future__ import annotations

import stat
from typing import Any

import grpc
import pytest
from clag.v1 import admin_service_pb2, cluster_service_pb2, memory_service_pb2, types_pb2
from clag.v1 import memory_service_pb2 as pb
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from clag_server.api.limits import MAX_MESSAGE_BYTES
from tests.support.ingest import store, texts
from tests.support.process import ServerProcess, Stubs
from tests.support.reads import ask, listed
from tests.support.status import read, refused

SERVING = health_pb2.HealthCheckResponse.SERVING
SERVICES = ("clag.v1.MemoryService", "clag.v1.ClusterService", "clag.v1.AdminService")


def test_a_message_over_the_limit_is_refused_with_the_limit(stubs: Stubs, namespace: str) -> None:
    memory = types_pb2.MemoryInput(text="x", tags=["y" * (5 << 20)])
    with refused(grpc.StatusCode.RESOURCE_EXHAUSTED) as failures:
        stubs.memory.CreateMemory(pb.CreateMemoryRequest(namespace=namespace, memory=memory), timeout=20)
    assert str(MAX_MESSAGE_BYTES) in failures[0].message


def test_too_many_memories_asked_for_are_refused_with_the_limit(stubs: Stubs, namespace: str) -> None:
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD") as failures:
        ask(stubs, namespace, "anything", max_memories=1000)
    assert failures[0].fields == ("max_memories",)
    assert "256" in failures[0].message


@pytest.mark.parametrize(("asked", "got"), [(0, 50), (1, 1), (60, 60), (1_000_000_000, 70)])
def test_page_sizes_are_defaulted_and_clamped(stubs: Stubs, asked: int, got: int) -> None:
    namespace = "t-pages"
    store(
        stubs,
        namespace,
        [types_pb2.MemoryInput(text=f"note {n}", memory_id=f"m{n}") for n in range(70)],
        level=pb.AckLevel.ACK_LEVEL_DURABLE,
    )
    page = stubs.memory.ListMemories(pb.ListMemoriesRequest(namespace=namespace, page_size=asked), timeout=20)
    assert len(page.memories) == got
    assert bool(page.next_page_token) == (got < 70)
    assert len(listed(stubs, namespace, page_size=asked or 50)) == 70


def test_a_page_of_large_memories_stays_below_the_message_limit(stubs: Stubs, namespace: str) -> None:
    large = [types_pb2.MemoryInput(text=f"{n} " + "x" * 32_000) for n in range(150)]
    for start in range(0, 150, 30):
        store(
            stubs, namespace, large[start : start + 30], stream_id=f"s{start}", level=pb.AckLevel.ACK_LEVEL_DURABLE
        )
    assert len(listed(stubs, namespace, page_size=1000)) == 150


def test_what_was_acknowledged_is_found_by_the_next_question(stubs: Stubs, namespace: str) -> None:
    for number in range(5):
        text = f"locker {number} holds item {number * 7919}"
        store(stubs, namespace, texts(text), stream_id=f"s{number}")
        assert ask(stubs, namespace, text)[0].memory.text == text


def test_a_question_that_names_a_revision_sees_that_write(stubs: Stubs, namespace: str) -> None:
    store(stubs, namespace, texts("first note"))
    created = stubs.memory.CreateMemory(
        pb.CreateMemoryRequest(namespace=namespace, memory=types_pb2.MemoryInput(text="the crane is red")),
        timeout=20,
    )
    fresh = types_pb2.ReadOptions(at_least_as_fresh=created.revision)
    assert ask(stubs, namespace, "the crane is red", read=fresh)[0].memory.text == "the crane is red"


def test_retrieve_answers_in_stages_and_get_context_with_all_at_once(stubs: Stubs, namespace: str) -> None:
    store(stubs, namespace, texts("the dock is B3", "lunch is at noon"))
    question = pb.RetrieveRequest(
        namespace=namespace, query=pb.Query(text="where is the dock"), context_tokens=200, explain=True
    )
    frames = list(stubs.memory.Retrieve(question, timeout=20))
    assert [frame.WhichOneof("stage") for frame in frames] == ["clusters", "memories", "context", "done"]
    assert frames[0].clusters.candidates[0].selected
    assert frames[3].done.search_space.memories_total == 2
    whole = stubs.memory.GetContext(pb.GetContextRequest(retrieve=question), timeout=20)
    assert [hit.memory.text for hit in whole.memories.hits] == [hit.memory.text for hit in frames[1].memories.hits]
    assert "the dock is B3" in whole.context.text
    assert [part.name for part in whole.memories.hits[0].score_parts][:2] == ["dense", "lexical"]


def test_health_serves_for_the_server_and_each_service(stubs: Stubs) -> None:
    for name in ("", *SERVICES):
        request = health_pb2.HealthCheckRequest(service=name)
        assert stubs.health.Check(request, timeout=20).status == SERVING
    with refused(grpc.StatusCode.NOT_FOUND):
        stubs.health.Check(health_pb2.HealthCheckRequest(service="clag.v1.Nothing"), timeout=20)


def test_reflection_lists_the_services(stubs: Stubs) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(stubs.channel)
    asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    (answer,) = stub.ServerReflectionInfo(asked, timeout=20)
    assert set(SERVICES) <= {service.name for service in answer.list_services_response.service}


def valid_request(descriptor: type[Message]) -> Message:
    """A request that passes the rules, as far as this release's unserved methods need it."""
    known: dict[str, Message] = {
        "AnswerRequest": pb.AnswerRequest(retrieve=pb.RetrieveRequest(namespace="n", query=pb.Query(text="x"))),
        "DeleteMemoriesRequest": pb.DeleteMemoriesRequest(
            namespace="n",
            filter=types_pb2.Filter(
                comparison=types_pb2.Comparison(
                    field=types_pb2.FilterField.FILTER_FIELD_TAG,
                    op=types_pb2.FilterOperator.FILTER_OPERATOR_EXISTS,
                )
            ),
        ),
        "SignalSceneRequest": pb.SignalSceneRequest(namespace="n", signal=pb.SceneSignal.SCENE_SIGNAL_SCENE_SWITCH),
        "SplitClusterRequest": cluster_service_pb2.SplitClusterRequest(parts=2),
    }
    request = known.get(descriptor.DESCRIPTOR.name, descriptor())
    names = {field.name: field for field in descriptor.DESCRIPTOR.fields}
    for name, value in {"namespace": "n", "memory_id": "m", "cluster_id": "c1", "operation_id": "o"}.items():
        if name in names:
            setattr(request, name, value)
    if "target_cluster_id" in names:
        request.MergeFrom(descriptor(target_cluster_id="c1"))
    for name in ("source_cluster_ids", "memory_ids"):
        if name in names:
            request.MergeFrom(descriptor(**{name: ["x"]}))
    if "edit" in names:
        request.MergeFrom(descriptor(edit=cluster_service_pb2.Edit(namespace="n")))
    if "update_mask" in names:
        request.MergeFrom(descriptor(update_mask={"paths": ["text"]}))
    for name in ("cluster", "settings"):
        if name in names:
            getattr(request, name).SetInParent()
    return request


def test_every_method_of_the_contract_is_served_and_server_info_says_so(stubs: Stubs) -> None:
    info = stubs.admin.GetServerInfo(admin_service_pb2.GetServerInfoRequest(), timeout=20)
    refusing = set()
    for file in (memory_service_pb2, cluster_service_pb2, admin_service_pb2):
        for service in file.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                request = valid_request(GetMessageClass(method.input_type))
                call: Any = stubs.channel.stream_stream(
                    f"/{service.full_name}/{method.name}",
                    request_serializer=lambda message: message.SerializeToString(),
                    response_deserializer=lambda data: data,
                )
                try:
                    list(call(iter([request]), timeout=10))
                except grpc.RpcError as error:
                    if read(error).code is grpc.StatusCode.UNIMPLEMENTED:
                        refusing.add(f"{service.name}/{method.name}")
    assert refusing == set(info.unimplemented) == set()


def test_server_info_says_limits_models_and_contract(stubs: Stubs) -> None:
    info = stubs.admin.GetServerInfo(admin_service_pb2.GetServerInfoRequest(), timeout=20)
    assert info.limits.max_message_bytes == MAX_MESSAGE_BYTES
    assert (info.limits.max_memories, info.limits.max_batch_items, info.limits.window_items) == (256, 256, 1024)
    assert info.embedder.name == "scripted-embedder"
    assert info.embedder.state == admin_service_pb2.ModelState.MODEL_STATE_READY
    assert info.embedder.dimension == 64
    assert len(info.contract_hash) == 64
    assert info.contract == "clag.v1"


def test_counters_add_up_and_match_what_is_listed(stubs: Stubs, namespace: str) -> None:
    items = [types_pb2.MemoryInput(text=f"note {n}", memory_id=f"m{n % 8}") for n in range(10)]
    items.append(types_pb2.MemoryInput(text=""))
    store(stubs, namespace, items, level=pb.AckLevel.ACK_LEVEL_ORGANIZED)
    stats = stubs.admin.GetStats(admin_service_pb2.GetStatsRequest(namespace=namespace), timeout=20)
    outcomes = stats.outcomes
    assert (outcomes.created, outcomes.duplicate, outcomes.rejected) == (8, 2, 1)
    assert stats.memories.total == stats.memories.evolved == len(listed(stubs, namespace)) == 8
    whole = stubs.admin.GetStats(admin_service_pb2.GetStatsRequest(), timeout=20)
    assert whole.namespaces >= 1
    assert whole.memories.total >= 8


def test_the_socket_is_for_its_owner_alone(shared_server: ServerProcess) -> None:
    assert stat.S_IMODE(shared_server.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(shared_server.data_dir.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("numbers", "path", "word"),
    [
        ([1.0] * 63, "embedding", "64"),
        ([0.0] * 64, "embedding", "zero"),
        ([1.0] * 10 + [float("nan")] * 54, "embedding[10]", "finite"),
        ([1.0] * 63 + [float("inf")], "embedding[63]", "finite"),
    ],
)
def test_an_embedding_that_does_not_fit_the_index_is_refused_with_its_place(
    stubs: Stubs, namespace: str, numbers: list[float], path: str, word: str
) -> None:
    memory = types_pb2.MemoryInput(text="x", embedding=numbers)
    (result,) = store(stubs, namespace, [memory])
    assert result.error.field == path
    assert word in result.error.message
    with refused(grpc.StatusCode.INVALID_ARGUMENT) as failures:
        stubs.memory.CreateMemory(pb.CreateMemoryRequest(namespace=namespace, memory=memory), timeout=20)
    assert failures[0].fields == (f"memory.{path}",)
    with refused(grpc.StatusCode.INVALID_ARGUMENT) as failures:
        request = pb.RetrieveRequest(namespace=namespace, query=pb.Query(embedding=numbers))
        list(stubs.memory.Retrieve(request, timeout=20))
    assert failures[0].fields == (f"query.{path}",)


def test_a_callers_embedding_is_kept_normalised(stubs: Stubs, namespace: str) -> None:
    numbers = [3.0, 4.0] + [0.0] * 62
    store(stubs, namespace, [types_pb2.MemoryInput(text="x", memory_id="m", embedding=numbers)])
    request = pb.GetMemoryRequest(namespace=namespace, memory_id="m", include_embedding=True)
    memory = stubs.memory.GetMemory(request, timeout=20).memory
    assert memory.client_embedding
    assert list(memory.embedding[:3]) == pytest.approx([0.6, 0.8, 0.0])
