"""Re-organization over the contract: one operation, a plan that says what and why, whole over a kill."""

from __future__ import annotations

import uuid

import grpc
import pytest
from clag.v1 import admin_service_pb2 as pb
from clag.v1 import cluster_service_pb2 as cluster_pb
from clag.v1 import memory_service_pb2 as memory_pb
from clag.v1 import types_pb2

from tests.catalog.consistency import assert_file_consistent
from tests.conftest import ServerMaker
from tests.support.catalog_file import wait_until
from tests.support.ingest import Level, store
from tests.support.process import Stubs
from tests.support.reads import clusters, listed
from tests.support.status import refused

TOPICS = {
    "dock": "charging dock needs another yellow cable soon",
    "gripper": "gripper finger slipped while lifting fragile glass",
    "door": "northern door opens slowly every winter morning",
}


@pytest.fixture
def homes(stubs: Stubs, namespace: str) -> dict[str, str]:
    """Topics that are each in one cluster: topic -> cluster id."""
    return tell(stubs, namespace)


def tell(stubs: Stubs, namespace: str) -> dict[str, str]:
    items = [
        types_pb2.MemoryInput(
            memory_id=f"{topic}-{session}-{i}", session_id=f"{topic}-{session}", text=f"{text} part {i}"
        )
        for topic, text in TOPICS.items()
        for session in range(4)
        for i in range(3)
    ]
    store(stubs, namespace, items, level=Level.ACK_LEVEL_ORGANIZED)
    found = {topic: together(stubs, namespace, topic) for topic in TOPICS}
    assert len(set(found.values())) == len(TOPICS)
    return found


def together(stubs: Stubs, namespace: str, topic: str) -> str:
    """Bring a topic into one cluster, whatever routing made of it; returns that."""
    ids = {m.memory_id: m.cluster_id for m in listed(stubs, namespace) if m.memory_id.startswith(topic)}
    target = ids[f"{topic}-0-0"]
    move(stubs, namespace, target, [memory_id for memory_id, home in ids.items() if home != target])
    return target


def move(stubs: Stubs, namespace: str, target: str, memory_ids: list[str]) -> None:
    if memory_ids:
        request = cluster_pb.MoveMemoriesRequest(
            edit=cluster_pb.Edit(namespace=namespace), target_cluster_id=target, memory_ids=memory_ids
        )
        stubs.cluster.MoveMemories(request, timeout=20)


def merge(stubs: Stubs, namespace: str, target: str, source: str) -> None:
    request = cluster_pb.MergeClustersRequest(
        edit=cluster_pb.Edit(namespace=namespace), target_cluster_id=target, source_cluster_ids=[source]
    )
    stubs.cluster.MergeClusters(request, timeout=20)


def reorganize(stubs: Stubs, namespace: str, **fields: object) -> pb.Operation:
    request = pb.ReorganizeRequest(namespace=namespace, **fields)  # type: ignore[arg-type]
    return stubs.admin.Reorganize(request, timeout=20).operation


def end(stubs: Stubs, operation: pb.Operation) -> pb.Operation:
    request = pb.WatchOperationRequest(operation_id=operation.operation_id)
    return [response.operation for response in stubs.admin.WatchOperation(request, timeout=60)][-1]


def test_a_plan_is_shown_then_applied_and_every_memory_is_in_one_cluster(
    stubs: Stubs, namespace: str, homes: dict[str, str]
) -> None:
    merge(stubs, namespace, homes["dock"], homes["door"])
    planned = end(stubs, reorganize(stubs, namespace, dry_run=True))
    assert planned.kind == pb.OPERATION_KIND_REORGANIZE
    assert planned.state == pb.OPERATION_STATE_SUCCEEDED
    plan = planned.reorganize
    assert plan.dry_run
    assert plan.planned_by == types_pb2.ROUTING_DECIDER_VECTOR
    assert (plan.clusters_before, plan.clusters_after, plan.memories_moved) == (2, 3, 12)
    split = next(step for step in plan.steps if step.kind == pb.PLAN_STEP_KIND_SPLIT)
    assert (list(split.from_cluster_ids), split.to_cluster_id) == ([homes["dock"]], "")
    assert len(split.sample_memory_ids) == 12
    assert split.reason
    assert len(clusters(stubs, namespace)) == 2
    done = end(stubs, reorganize(stubs, namespace)).reorganize
    assert not done.dry_run
    assert done.attempts == 1
    new = next(step for step in done.steps if step.kind == pb.PLAN_STEP_KIND_SPLIT).to_cluster_id
    read = types_pb2.ReadOptions(at_least_as_fresh=done.revision)
    request = memory_pb.ListMemoriesRequest(namespace=namespace, page_size=100, read=read)
    memories = stubs.memory.ListMemories(request, timeout=20).memories
    topics = {(memory.cluster_id, memory.memory_id.split("-")[0]) for memory in memories}
    assert len(memories) == 36
    assert len(topics) == len({cluster_id for cluster_id, _ in topics}) == 3
    assert new in {cluster_id for cluster_id, _ in topics}
    counted = {cluster.cluster_id: cluster.memory_count for cluster in clusters(stubs, namespace)}
    assert counted == {cluster_id: 12 for cluster_id, _ in topics}


def test_a_list_of_operations_leaves_out_the_steps_and_a_single_one_has_them(
    stubs: Stubs, namespace: str, homes: dict[str, str]
) -> None:
    merge(stubs, namespace, homes["dock"], homes["door"])
    ended = end(stubs, reorganize(stubs, namespace, dry_run=True))
    page = stubs.admin.ListOperations(pb.ListOperationsRequest(namespace=namespace), timeout=20).operations
    assert (page[0].operation_id, len(page[0].reorganize.steps)) == (ended.operation_id, 0)
    one = stubs.admin.GetOperation(pb.GetOperationRequest(operation_id=ended.operation_id), timeout=20).operation
    assert one == ended
    assert one.reorganize.steps


def test_a_retry_gets_the_operation_that_its_request_began(
    stubs: Stubs, namespace: str, homes: dict[str, str]
) -> None:
    first = reorganize(stubs, namespace, request_id="once", cluster_ids=[homes["dock"]])
    end(stubs, first)
    merge(stubs, namespace, homes["gripper"], homes["dock"])
    again = reorganize(stubs, namespace, request_id="once", cluster_ids=[homes["dock"]])
    assert again.operation_id == first.operation_id
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "REQUEST_ID_REUSED"):
        reorganize(stubs, namespace, request_id="once", dry_run=True)


@pytest.mark.usefixtures("homes")
def test_what_is_not_there_cannot_be_reorganized(stubs: Stubs, namespace: str) -> None:
    with refused(grpc.StatusCode.NOT_FOUND, "NOT_FOUND"):
        reorganize(stubs, namespace, cluster_ids=["c9999"])
    with refused(grpc.StatusCode.NOT_FOUND, "NOT_FOUND"):
        reorganize(stubs, namespace, cluster_ids=["kitchen"])
    with refused(grpc.StatusCode.NOT_FOUND, "NOT_FOUND"):
        reorganize(stubs, f"t-{uuid.uuid4().hex[:8]}")
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"):
        reorganize(stubs, namespace, target_clusters=5000)


def test_a_scene_switch_starts_one_where_the_namespace_wants_it(
    stubs: Stubs, namespace: str, homes: dict[str, str]
) -> None:
    merge(stubs, namespace, homes["dock"], homes["door"])
    request = memory_pb.SignalSceneRequest(namespace=namespace, signal=memory_pb.SCENE_SIGNAL_SCENE_SWITCH)
    assert stubs.memory.SignalScene(request, timeout=20).operation_id == ""
    update = pb.UpdateNamespaceRequest(namespace=namespace, settings=pb.NamespaceSettings(auto_reorganize=True))
    update.update_mask.paths.append("auto_reorganize")
    stubs.admin.UpdateNamespace(update, timeout=20)
    begun = stubs.memory.SignalScene(request, timeout=20).operation_id
    assert end(stubs, pb.Operation(operation_id=begun)).reorganize.memories_moved == 12


@pytest.mark.parametrize(
    "moment",
    [
        "SELECT count(*) FROM operations WHERE kind = 1",
        "SELECT count(*) FROM operations WHERE kind = 1 AND phase = 'applying'",
        "SELECT count(*) FROM edit_requests WHERE request_id LIKE '%re-organization%'",
    ],
)
def test_a_kill_at_any_point_leaves_the_clusters_as_they_were_or_as_planned(
    make_server: ServerMaker, namespace: str, moment: str
) -> None:
    server = make_server().start()
    stubs = server.connect()
    homes = tell(stubs, namespace)
    merge(stubs, namespace, homes["dock"], homes["door"])
    begun = reorganize(stubs, namespace)
    wait_until(server.data_dir, moment)
    server.kill()
    assert_file_consistent(server.data_dir / "catalog.db")
    stubs = server.start().connect()
    done = end(stubs, begun)
    assert done.state == pb.OPERATION_STATE_SUCCEEDED
    assert (done.reorganize.memories_moved, done.reorganize.clusters_after) == (12, 3)
    topics = {(memory.cluster_id, memory.memory_id.split("-")[0]) for memory in listed(stubs, namespace)}
    assert len(topics) == len({cluster_id for cluster_id, _ in topics}) == 3
    server.terminate()
    assert_file_consistent(server.data_dir / "catalog.db")
