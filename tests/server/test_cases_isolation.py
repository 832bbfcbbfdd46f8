"""Isolation in every call: empty ids touch nothing, values are data, no namespace sees another's words."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest
from clag.v1 import admin_service_pb2 as admin
from clag.v1 import cluster_service_pb2 as cluster_pb
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from google.protobuf.field_mask_pb2 import FieldMask

from tests.conftest import ServerMaker
from tests.support.ingest import IngestStream, store, texts
from tests.support.process import ServerProcess, Stubs
from tests.support.reads import ask, clusters, get, listed
from tests.support.status import refused
from tests.support.transfer import ImportStream, export, load

TIMEOUT_S = 60.0
HOSTILE = ('") or true or ("', "x'] or id not in ['zzz", "../../../../victim", "a%", '"; drop table', "A/B")
RESERVED = ("namespace", "id", "memory_id", "cluster_id", "vector", "$meta", "ns", "key")


def string(value: str) -> types_pb2.AttributeValue:
    return types_pb2.AttributeValue(string_value=value)


def comparison(value: str, **of: Any) -> types_pb2.Filter:
    compared = types_pb2.Comparison(op=types_pb2.FILTER_OPERATOR_EQ, value=string(value), **of)
    return types_pb2.Filter(comparison=compared)


def update(namespace: str, memory_id: str, path: str = "text", **fields: Any) -> pb.UpdateMemoryRequest:
    return pb.UpdateMemoryRequest(
        namespace=namespace,
        memory_id=memory_id,
        memory=types_pb2.MemoryInput(**(fields or {"text": "overwritten"})),
        update_mask=FieldMask(paths=[path]),
    )


def calls_that_need_a_namespace(stubs: Stubs, value: str) -> dict[str, Callable[[], object]]:
    """Every call that came after the first release, with this namespace; each is whole otherwise."""
    memory, cluster, edit = stubs.memory, stubs.cluster, cluster_pb.Edit(namespace=value)
    everything = types_pb2.Filter(negation=comparison("none", field=types_pb2.FILTER_FIELD_TAG))
    pinned = types_pb2.Cluster(pinned=True)
    mask = FieldMask(paths=["pinned"])
    scene = pb.SCENE_SIGNAL_SCENE_SWITCH
    return {
        "update": lambda: memory.UpdateMemory(update(value, "m1")),
        "delete many": lambda: memory.DeleteMemories(pb.DeleteMemoriesRequest(namespace=value, filter=everything)),
        "history": lambda: memory.ListMemoryHistory(pb.ListMemoryHistoryRequest(namespace=value, memory_id="m1")),
        "watch": lambda: next(memory.Watch(pb.WatchRequest(namespace=value), timeout=TIMEOUT_S)),
        "scene": lambda: memory.SignalScene(pb.SignalSceneRequest(namespace=value, signal=scene)),
        "export": lambda: export(stubs, value),
        "import": lambda: ImportStream(stubs, value),
        "create": lambda: stubs.admin.CreateNamespace(admin.CreateNamespaceRequest(namespace=value)),
        "read": lambda: stubs.admin.GetNamespace(admin.GetNamespaceRequest(namespace=value)),
        "settings": lambda: stubs.admin.UpdateNamespace(
            admin.UpdateNamespaceRequest(
                namespace=value, settings=admin.NamespaceSettings(), update_mask=FieldMask(paths=["purpose"])
            )
        ),
        "delete": lambda: stubs.admin.DeleteNamespace(admin.DeleteNamespaceRequest(namespace=value)),
        "reindex": lambda: stubs.admin.Reindex(admin.ReindexRequest(namespace=value)),
        "profile": lambda: cluster.UpdateCluster(
            cluster_pb.UpdateClusterRequest(edit=edit, cluster_id="c1", cluster=pinned, update_mask=mask)
        ),
        "merge": lambda: cluster.MergeClusters(
            cluster_pb.MergeClustersRequest(edit=edit, target_cluster_id="c1", source_cluster_ids=["c2"])
        ),
        "split": lambda: cluster.SplitCluster(cluster_pb.SplitClusterRequest(edit=edit, cluster_id="c1", parts=2)),
        "move": lambda: cluster.MoveMemories(
            cluster_pb.MoveMemoriesRequest(edit=edit, target_cluster_id="c1", memory_ids=["m1"])
        ),
        "archive": lambda: cluster.ArchiveCluster(
            cluster_pb.ArchiveClusterRequest(edit=edit, cluster_id="c1", archived=True)
        ),
        "cluster history": lambda: cluster.ListClusterHistory(
            cluster_pb.ListClusterHistoryRequest(namespace=value, cluster_id="c1")
        ),
    }


def calls_that_need_an_id(stubs: Stubs, namespace: str, value: str) -> dict[str, Callable[[], object]]:
    """By the field that is to be refused (the part after a number says which call it is)."""
    memory, cluster, edit = stubs.memory, stubs.cluster, cluster_pb.Edit(namespace=namespace)
    pinned, mask = types_pb2.Cluster(pinned=True), FieldMask(paths=["pinned"])
    merge, move = cluster_pb.MergeClustersRequest, cluster_pb.MoveMemoriesRequest
    group = cluster_pb.MemoryGroups(groups=[cluster_pb.MemoryGroup(memory_ids=[value])])
    return {
        "memory_id": lambda: memory.UpdateMemory(update(namespace, value)),
        "memory_id 2": lambda: memory.ListMemoryHistory(
            pb.ListMemoryHistoryRequest(namespace=namespace, memory_id=value)
        ),
        "open.stream_id": lambda: ImportStream(stubs, namespace, value),
        "cluster_id": lambda: cluster.UpdateCluster(
            cluster_pb.UpdateClusterRequest(edit=edit, cluster_id=value, cluster=pinned, update_mask=mask)
        ),
        "target_cluster_id": lambda: cluster.MergeClusters(
            merge(edit=edit, target_cluster_id=value, source_cluster_ids=["c1"])
        ),
        "source_cluster_ids[0]": lambda: cluster.MergeClusters(
            merge(edit=edit, target_cluster_id="c1", source_cluster_ids=[value])
        ),
        "cluster_id 2": lambda: cluster.SplitCluster(
            cluster_pb.SplitClusterRequest(edit=edit, cluster_id=value, parts=2)
        ),
        "groups.groups[0].memory_ids[0]": lambda: cluster.SplitCluster(
            cluster_pb.SplitClusterRequest(edit=edit, cluster_id="c1", groups=group)
        ),
        "target_cluster_id 2": lambda: cluster.MoveMemories(
            move(edit=edit, target_cluster_id=value, memory_ids=["m1"])
        ),
        "memory_ids[0]": lambda: cluster.MoveMemories(move(edit=edit, target_cluster_id="c1", memory_ids=[value])),
        "cluster_id 3": lambda: cluster.ArchiveCluster(
            cluster_pb.ArchiveClusterRequest(edit=edit, cluster_id=value, archived=True)
        ),
        "cluster_id 4": lambda: cluster.ListClusterHistory(
            cluster_pb.ListClusterHistoryRequest(namespace=namespace, cluster_id=value)
        ),
        "operation_id": lambda: stubs.admin.GetOperation(admin.GetOperationRequest(operation_id=value)),
        "operation_id 2": lambda: stubs.admin.CancelOperation(admin.CancelOperationRequest(operation_id=value)),
        "operation_id 3": lambda: list(
            stubs.admin.WatchOperation(admin.WatchOperationRequest(operation_id=value), timeout=TIMEOUT_S)
        ),
    }


def filled(stubs: Stubs, namespace: str) -> list[bytes]:
    """Two memories; returns what `state` says of them."""
    items = [types_pb2.MemoryInput(memory_id=f"m{n}", text=f"note {n}") for n in (1, 2)]
    store(stubs, namespace, items, level=pb.ACK_LEVEL_ORGANIZED)
    return state(stubs, namespace)


def state(stubs: Stubs, namespace: str) -> list[bytes]:
    """All memories to the bit, and what clusters there are (their profiles are written behind the calls)."""
    memories = [one.SerializeToString(deterministic=True) for one in listed(stubs, namespace)]
    return memories + [f"{one.cluster_id} {one.memory_count}".encode() for one in clusters(stubs, namespace)]


@pytest.mark.parametrize("value", ["", " ", *HOSTILE])
def test_an_id_that_is_empty_or_none_is_refused_by_every_edit_and_nothing_is_touched(
    stubs: Stubs, namespace: str, value: str
) -> None:
    before = filled(stubs, namespace)
    for field, call in calls_that_need_an_id(stubs, namespace, value).items():
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD") as failures:
            call()
        assert failures[0].fields == (field.split(" ")[0],)
    assert state(stubs, namespace) == before


@pytest.mark.parametrize("value", ["", " ", *HOSTILE])
def test_a_namespace_that_is_empty_or_none_is_refused_by_every_call_and_nothing_is_touched(
    stubs: Stubs, shared_server: ServerProcess, namespace: str, value: str
) -> None:
    before = filled(stubs, namespace)
    for name, call in calls_that_need_a_namespace(stubs, value).items():
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD") as failures:
            call()
        (field,) = failures[0].fields
        assert field.rpartition(".")[2] == "namespace", name
    assert state(stubs, namespace) == before
    assert not list(shared_server.root.parent.rglob("victim*"))


def test_hostile_values_of_a_filter_delete_what_has_them_and_nothing_else(stubs: Stubs, namespace: str) -> None:
    other = f"{namespace}-1"
    for name in (namespace, other):
        items = [types_pb2.MemoryInput(text=f"note {n}", tags=[value]) for n, value in enumerate(HOSTILE)]
        store(stubs, name, [*items, types_pb2.MemoryInput(text="bystander", tags=["ab"])])
    for left, value in zip(range(len(HOSTILE), 0, -1), HOSTILE, strict=True):
        where = comparison(value, field=types_pb2.FILTER_FIELD_TAG)
        request = pb.DeleteMemoriesRequest(namespace=namespace, filter=where)
        assert stubs.memory.DeleteMemories(request, timeout=20).deleted == 1
        assert len(listed(stubs, namespace)) == left
    assert [memory.text for memory in listed(stubs, namespace)] == ["bystander"]
    assert len(listed(stubs, other)) == len(HOSTILE) + 1


def test_attributes_with_names_of_ours_stay_plain_through_updates_and_imports(stubs: Stubs, namespace: str) -> None:
    victim, copy = f"{namespace}-1", f"{namespace}-2"
    store(stubs, victim, [types_pb2.MemoryInput(memory_id="v", text="theirs")])
    store(stubs, namespace, [types_pb2.MemoryInput(memory_id="m", text="mine")])
    stubs.memory.UpdateMemory(
        update(namespace, "m", "attributes", attributes={name: string(victim) for name in RESERVED}), timeout=20
    )
    for name in RESERVED:
        stubs.memory.UpdateMemory(
            update(namespace, "m", f"attributes.{name}", attributes={name: string(victim)}), timeout=20
        )
    load(stubs, copy, export(stubs, namespace), keep_organization=True)
    for scope in (namespace, copy):
        memory = get(stubs, scope, "m")
        assert {name: value.string_value for name, value in memory.attributes.items()} == dict.fromkeys(
            RESERVED, victim
        )
        assert (memory.text, memory.memory_id) == ("mine", "m")
        assert [hit.memory.memory_id for hit in ask(stubs, scope, "mine theirs")] == ["m"]
        for name in RESERVED:
            where = comparison(victim, attribute=name)
            page = stubs.memory.ListMemories(pb.ListMemoriesRequest(namespace=scope, filter=where), timeout=20)
            assert [one.memory_id for one in page.memories] == ["m"]
    where = comparison(victim, attribute="namespace")
    assert (
        stubs.memory.DeleteMemories(pb.DeleteMemoriesRequest(namespace=copy, filter=where), timeout=20).deleted == 1
    )
    assert [memory.text for memory in listed(stubs, victim)] == ["theirs"]
    assert [memory.text for memory in listed(stubs, namespace)] == ["mine"]


def test_an_imported_row_cannot_name_the_namespace_it_comes_to(stubs: Stubs, namespace: str) -> None:
    victim = f"{namespace}-1"
    store(stubs, victim, [types_pb2.MemoryInput(memory_id="v", text="theirs")])
    rows = [
        admin.ExportRecord(
            namespace=admin.Namespace(namespace=victim, settings=admin.NamespaceSettings(purpose="x"))
        ),
        admin.ExportRecord(memory=types_pb2.Memory(memory_id="v", text="mine", cluster_id="c1", episode_id="e1")),
    ]
    load(stubs, namespace, rows, keep_organization=True, on_conflict=admin.IMPORT_CONFLICT_REPLACE)
    assert [memory.text for memory in listed(stubs, victim)] == ["theirs"]
    settings = stubs.admin.GetNamespace(admin.GetNamespaceRequest(namespace=victim), timeout=20).namespace.settings
    assert settings.purpose == ""
    assert [memory.text for memory in listed(stubs, namespace)] == ["mine"]


def test_edits_with_ids_of_another_namespace_find_nothing_there(stubs: Stubs, namespace: str) -> None:
    other = f"{namespace}-1"
    store(stubs, namespace, [types_pb2.MemoryInput(memory_id="m", text="mine")], level=pb.ACK_LEVEL_ORGANIZED)
    before = filled(stubs, other)
    edit = cluster_pb.Edit(namespace=other)
    home = get(stubs, other, "m1").cluster_id
    calls: list[Callable[[], object]] = [
        lambda: stubs.memory.UpdateMemory(update(other, "m")),
        lambda: stubs.memory.ListMemoryHistory(pb.ListMemoryHistoryRequest(namespace=other, memory_id="m")),
        lambda: stubs.cluster.MoveMemories(
            cluster_pb.MoveMemoriesRequest(edit=edit, target_cluster_id=home, memory_ids=["m"])
        ),
    ]
    for call in calls:
        with refused(grpc.StatusCode.NOT_FOUND, "NOT_FOUND"):
            call()
    assert state(stubs, other) == before
    assert get(stubs, namespace, "m").text == "mine"


def test_exports_histories_and_operations_of_similar_names_are_their_own(stubs: Stubs, namespace: str) -> None:
    names = [namespace[:8], f"{namespace[:8]}-1", f"{namespace[:8]}-corp"]
    for name in names:
        store(stubs, name, [types_pb2.MemoryInput(memory_id="m", text=f"the dock of {name}.")])
        stubs.admin.Reindex(admin.ReindexRequest(namespace=name), timeout=20)
    for name in names:
        records = export(stubs, name)
        assert [record.memory.text for record in records if record.HasField("memory")] == [f"the dock of {name}."]
        assert [r.namespace.namespace for r in records if r.HasField("namespace")] == [name]
        page = stubs.admin.ListOperations(admin.ListOperationsRequest(namespace=name), timeout=20)
        assert [operation.namespace for operation in page.operations] == [name]


def test_writes_to_one_namespace_and_reads_of_another_at_once_do_not_mix(stubs: Stubs, namespace: str) -> None:
    other = f"{namespace}-b"
    store(stubs, other, texts(*(f"b note {n}" for n in range(20))))
    wrong: list[str] = []
    with IngestStream(stubs, namespace, level=pb.ACK_LEVEL_SEARCHABLE) as stream:

        def read() -> None:
            for _ in range(4):
                seen = [memory.text for memory in listed(stubs, other)]
                seen += [hit.memory.text for hit in ask(stubs, other, "a note 7", max_memories=64)]
                wrong.extend(text for text in seen if not text.startswith("b "))

        readers = [threading.Thread(target=read) for _ in range(16)]
        for thread in readers:
            thread.start()
        for start in range(0, 320, 5):
            stream.batch(texts(*(f"a note {n}" for n in range(start, start + 5))))
        stream.finish()
        for thread in readers:
            thread.join(TIMEOUT_S)
    assert not wrong
    assert all(hit.memory.text.startswith("a ") for hit in ask(stubs, namespace, "b note 7", max_memories=64))


def test_the_few_that_match_a_filter_are_found_beside_thousands_that_do_not(stubs: Stubs, namespace: str) -> None:
    axes = np.eye(64, dtype=np.float32)
    crowd = [
        types_pb2.MemoryInput(text=f"pallet {n} in aisle {n % 40}", embedding=axes[n % 40], session_id=f"s{n % 40}")
        for n in range(2_500)
    ]
    few = [
        types_pb2.MemoryInput(text=f"{chr(97 + n) * 5} of the pump", tags=["rare"], embedding=axes[40 + n])
        for n in range(20)
    ]
    for start in range(0, 2_500, 1_000):
        store(stubs, namespace, crowd[start : start + 1_000], stream_id=f"c{start}", level=pb.ACK_LEVEL_DURABLE)
    store(stubs, namespace, few, stream_id="few")
    where = comparison("rare", field=types_pb2.FILTER_FIELD_TAG)
    for mode in (pb.RETRIEVAL_MODE_TWO_STAGE, pb.RETRIEVAL_MODE_GLOBAL):
        hits = ask(stubs, namespace, "pallet in aisle 7", filter=where, mode=mode, max_memories=10)
        assert len({hit.memory.memory_id for hit in hits}) == 10
        assert {tag for hit in hits for tag in hit.memory.tags} == {"rare"}


def test_prompts_for_one_namespace_hold_no_word_of_another(make_server: ServerMaker) -> None:
    server = make_server(organize__annotate="slm", organize__trust="full")
    server.root.mkdir(parents=True)
    record = server.root / "prompts.jsonl"
    (server.root / "script.json").write_text(json.dumps({"record": str(record)}), encoding="utf-8")
    stubs = server.start().connect()
    secret, public = "zeppelinus hangar", "barrel quay"

    def fill(name: str, words: str, stream: str) -> None:
        items = [
            types_pb2.MemoryInput(text=f"{words} {n} {topic}", session_id=topic)
            for topic in ("violin", "battery", "elevator")
            for n in range(6)
        ]
        store(stubs, name, items, stream_id=stream, level=pb.ACK_LEVEL_ORGANIZED)

    fill("acme", secret, "first")
    settings = admin.NamespaceSettings(purpose="zeppelinus purpose")
    mask = FieldMask(paths=["purpose"])
    stubs.admin.UpdateNamespace(
        admin.UpdateNamespaceRequest(namespace="acme", settings=settings, update_mask=mask), timeout=20
    )
    with IngestStream(stubs, "acme", "open") as stream:  # work for both is in the same queues
        stream.batch(texts(*(f"{secret} late {n}" for n in range(40))))
        fill("acme-corp", public, "first")
        fill("acme-corp", public, "second")
        list(
            stubs.memory.Retrieve(
                pb.RetrieveRequest(
                    namespace="acme-corp", query=pb.Query(text="where is the barrel"), slm_use=pb.SLM_USE_ALWAYS
                ),
                timeout=30,
            )
        )
        stream.finish()
    prompts = [json.loads(line) for line in record.read_text("utf-8").splitlines()]
    asked = [line for line in prompts if line["kind"] != "embed"]
    about_public = [line for line in asked if "barrel" in json.dumps(line)]
    assert {line["kind"] for line in about_public} == {"choose", "generate"}
    assert any("zeppelinus" in json.dumps(line) for line in asked)  # else this looks at nothing
    assert not [line for line in about_public if "zeppelinus" in json.dumps(line)]
