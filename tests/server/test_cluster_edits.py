"""Clusters are edited by hand: each edit whole, previewed on request, safe to retry, and on the record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import grpc
import pytest
from clag.v1 import cluster_service_pb2 as pb
from clag.v1 import types_pb2
from google.protobuf.field_mask_pb2 import FieldMask

from tests.support.ingest import Level, store
from tests.support.process import ServerProcess, Stubs
from tests.support.reads import ask, clusters, get, listed
from tests.support.status import refused

TOPICS = {
    "dock": "the charging dock needs a new cable",
    "gripper": "gripper finger slipped while lifting glass",
    "door": "northern door opens slowly every winter morning",
}

Event = pb.ClusterEvent


@pytest.fixture
def homes(stubs: Stubs, namespace: str) -> dict[str, str]:
    """Three sessions of three topics, each in a cluster of its own: topic -> cluster id."""
    items = [
        types_pb2.MemoryInput(memory_id=f"{topic}-{i}", session_id=topic, text=f"{text} number {i}")
        for topic, text in TOPICS.items()
        for i in range(4)
    ]
    store(stubs, namespace, items, level=Level.ACK_LEVEL_ORGANIZED)
    found = {topic: get(stubs, namespace, f"{topic}-0").cluster_id for topic in TOPICS}
    assert len(set(found.values())) == 3
    return found


def members(stubs: Stubs, namespace: str) -> dict[str, set[str]]:
    """Cluster id -> ids of its memories, from the memories."""
    found: dict[str, set[str]] = {}
    for memory in listed(stubs, namespace):
        found.setdefault(memory.cluster_id, set()).add(memory.memory_id)
    return found


def counts(stubs: Stubs, namespace: str) -> dict[str, int]:
    """Cluster id -> number of memories, from the clusters."""
    return {cluster.cluster_id: cluster.memory_count for cluster in clusters(stubs, namespace)}


def one(stubs: Stubs, namespace: str, cluster_id: str) -> types_pb2.Cluster:
    request = pb.GetClusterRequest(namespace=namespace, cluster_id=cluster_id)
    return stubs.cluster.GetCluster(request, timeout=20).cluster


def history(stubs: Stubs, namespace: str, cluster_id: str, *, page_size: int = 0) -> list[pb.ClusterHistoryEntry]:
    found: list[pb.ClusterHistoryEntry] = []
    token = ""
    while True:
        page = stubs.cluster.ListClusterHistory(
            pb.ListClusterHistoryRequest(
                namespace=namespace, cluster_id=cluster_id, page_size=page_size, page_token=token
            ),
            timeout=20,
        )
        found.extend(page.entries)
        token = page.next_page_token
        if not token:
            return found


def merge(
    stubs: Stubs, namespace: str, target: str, sources: Sequence[str], **edit: object
) -> pb.MergeClustersResponse:
    request = pb.MergeClustersRequest(
        edit=pb.Edit(namespace=namespace, **edit),  # type: ignore[arg-type]
        target_cluster_id=target,
        source_cluster_ids=sources,
    )
    return stubs.cluster.MergeClusters(request, timeout=20)


def update(
    stubs: Stubs, namespace: str, cluster_id: str, paths: Sequence[str], *, etag: str = "", **fields: object
) -> types_pb2.Cluster:
    request = pb.UpdateClusterRequest(
        edit=pb.Edit(namespace=namespace, etag=etag),
        cluster_id=cluster_id,
        cluster=types_pb2.Cluster(**fields),  # type: ignore[arg-type]
        update_mask=FieldMask(paths=paths),
    )
    return stubs.cluster.UpdateCluster(request, timeout=20).cluster


def test_merged_clusters_are_one_and_every_memory_keeps_its_id(
    stubs: Stubs, namespace: str, homes: dict[str, str]
) -> None:
    answer = merge(stubs, namespace, homes["dock"], [homes["gripper"]])
    assert answer.moved == 4
    assert answer.cluster.memory_count == 8
    assert counts(stubs, namespace) == {homes["dock"]: 8, homes["door"]: 4}
    assert set(members(stubs, namespace)[homes["dock"]]) == {
        f"{topic}-{i}" for topic in ("dock", "gripper") for i in range(4)
    }
    hits = ask(stubs, namespace, "gripper finger slipped while lifting glass number 2")
    assert [hit.memory.memory_id for hit in hits].count("gripper-2") == 1
    moved = get(stubs, namespace, "gripper-2")
    assert moved.routing.decided_by == types_pb2.ROUTING_DECIDER_MANUAL
    with refused(grpc.StatusCode.NOT_FOUND, "NOT_FOUND"):
        one(stubs, namespace, homes["gripper"])
    gone = history(stubs, namespace, homes["gripper"])
    assert [entry.event for entry in gone] == [Event.CLUSTER_EVENT_MERGED]
    assert list(gone[0].cluster_ids) == [homes["dock"]]
    assert history(stubs, namespace, homes["dock"])[0].memories == 4


def test_a_cluster_is_split_by_likeness(stubs: Stubs, namespace: str, homes: dict[str, str]) -> None:
    merge(stubs, namespace, homes["dock"], [homes["gripper"], homes["door"]])
    request = pb.SplitClusterRequest(edit=pb.Edit(namespace=namespace), cluster_id=homes["dock"], parts=3)
    parts = stubs.cluster.SplitCluster(request, timeout=20).clusters
    assert parts[0].cluster_id == homes["dock"]
    assert [part.memory_count for part in parts] == [4, 4, 4]
    together = members(stubs, namespace)
    assert {frozenset(m.split("-")[0] for m in group) for group in together.values()} == {
        frozenset({topic}) for topic in TOPICS
    }
    assert counts(stubs, namespace) == {part.cluster_id: 4 for part in parts}
    assert history(stubs, namespace, homes["dock"])[0].event == Event.CLUSTER_EVENT_SPLIT
    assert history(stubs, namespace, parts[1].cluster_id)[-1].event == Event.CLUSTER_EVENT_FOUNDED


def test_a_cluster_of_one_episode_is_split_by_its_memories(stubs: Stubs, namespace: str) -> None:
    words = ["apple pear plum", "river lake sea", "apple pear fig", "river lake pond"]
    items = [types_pb2.MemoryInput(memory_id=f"m{i}", text=text) for i, text in enumerate(words)]
    store(stubs, namespace, items, level=Level.ACK_LEVEL_ORGANIZED)
    merged = clusters(stubs, namespace)
    if len(merged) > 1:
        merge(stubs, namespace, merged[0].cluster_id, [cluster.cluster_id for cluster in merged[1:]])
    request = pb.SplitClusterRequest(edit=pb.Edit(namespace=namespace), cluster_id=merged[0].cluster_id, parts=4)
    parts = stubs.cluster.SplitCluster(request, timeout=20).clusters
    assert [part.memory_count for part in parts] == [1, 1, 1, 1]
    assert sorted(len(group) for group in members(stubs, namespace).values()) == [1, 1, 1, 1]


def test_listed_groups_become_clusters_with_the_titles_they_were_given(
    stubs: Stubs, namespace: str, homes: dict[str, str]
) -> None:
    request = pb.SplitClusterRequest(
        edit=pb.Edit(namespace=namespace),
        cluster_id=homes["dock"],
        groups=pb.MemoryGroups(groups=[pb.MemoryGroup(title="odd  docks", memory_ids=["dock-1", "dock-3"])]),
    )
    kept, born = stubs.cluster.SplitCluster(request, timeout=20).clusters
    assert (kept.memory_count, born.memory_count) == (2, 2)
    assert born.title == "odd docks"
    assert members(stubs, namespace)[born.cluster_id] == {"dock-1", "dock-3"}


def test_moved_memories_are_in_the_other_cluster_and_nowhere_else(
    stubs: Stubs, namespace: str, homes: dict[str, str]
) -> None:
    request = pb.MoveMemoriesRequest(
        edit=pb.Edit(namespace=namespace),
        target_cluster_id=homes["door"],
        memory_ids=["dock-1", "gripper-0", "door-0"],
    )
    assert stubs.cluster.MoveMemories(request, timeout=20).moved == 2
    assert counts(stubs, namespace) == {homes["dock"]: 3, homes["gripper"]: 3, homes["door"]: 6}
    assert members(stubs, namespace)[homes["door"]] == {f"door-{i}" for i in range(4)} | {"dock-1", "gripper-0"}
    hits = ask(stubs, namespace, "the charging dock needs a new cable number 1", max_memories=12)
    assert [hit.memory.memory_id for hit in hits].count("dock-1") == 1
    assert history(stubs, namespace, homes["dock"])[0].event == Event.CLUSTER_EVENT_MOVED


def test_an_archived_cluster_is_out_of_retrieval_until_it_is_restored(
    stubs: Stubs, namespace: str, homes: dict[str, str]
) -> None:
    edit = pb.Edit(namespace=namespace)
    archived = stubs.cluster.ArchiveCluster(
        pb.ArchiveClusterRequest(edit=edit, cluster_id=homes["dock"], archived=True), timeout=20
    )
    assert archived.cluster.state == types_pb2.CLUSTER_STATE_ARCHIVED
    hits = ask(stubs, namespace, "which finger needs a new glass door in the morning", max_memories=12)
    assert not [hit for hit in hits if hit.memory.memory_id.startswith("dock")]
    hits = ask(stubs, namespace, "the charging dock needs a new cable", max_memories=12)
    assert [hit for hit in hits if hit.memory.memory_id.startswith("dock")]  # it fits: nothing active is nearer
    assert get(stubs, namespace, "dock-0").text
    with refused(grpc.StatusCode.FAILED_PRECONDITION, "CLUSTER_STATE"):
        merge(stubs, namespace, homes["dock"], [homes["door"]])
    stubs.cluster.ArchiveCluster(
        pb.ArchiveClusterRequest(edit=edit, cluster_id=homes["dock"], archived=False), timeout=20
    )
    hits = ask(stubs, namespace, "which finger needs a new glass door in the morning", max_memories=12)
    assert {f"dock-{i}" for i in range(4)} <= {hit.memory.memory_id for hit in hits}
    assert [entry.event for entry in history(stubs, namespace, homes["dock"])][:2] == [
        Event.CLUSTER_EVENT_RESTORED,
        Event.CLUSTER_EVENT_ARCHIVED,
    ]


def test_what_a_client_writes_is_kept_until_the_client_gives_it_back(
    stubs: Stubs, namespace: str, homes: dict[str, str]
) -> None:
    named = update(stubs, namespace, homes["dock"], ["title", "pinned"], title="Power at home", pinned=True)
    assert (named.title, named.pinned) == ("Power at home", True)
    assert named.profiled_by == types_pb2.ANNOTATION_SOURCE_UNSPECIFIED
    more = [
        types_pb2.MemoryInput(memory_id=f"more-{i}", session_id="dock", text=f"{TOPICS['dock']} again {i}")
        for i in range(12)
    ]
    store(stubs, namespace, more, stream_id="more", level=Level.ACK_LEVEL_ORGANIZED)
    later = one(stubs, namespace, homes["dock"])
    assert later.title == "Power at home"
    given_back = update(stubs, namespace, homes["dock"], ["title"])
    assert given_back.profile_stale
    assert [entry.event for entry in history(stubs, namespace, homes["dock"], page_size=1)] == [
        Event.CLUSTER_EVENT_PROFILE,
        Event.CLUSTER_EVENT_PINNED,
        Event.CLUSTER_EVENT_PROFILE,
    ]


def test_a_preview_shows_the_edit_and_changes_nothing(stubs: Stubs, namespace: str, homes: dict[str, str]) -> None:
    before = members(stubs, namespace)
    preview = merge(stubs, namespace, homes["dock"], [homes["door"]], validate_only=True)
    assert (preview.moved, preview.cluster.memory_count) == (4, 8)
    assert not preview.HasField("revision")
    request = pb.SplitClusterRequest(
        edit=pb.Edit(namespace=namespace, validate_only=True), cluster_id=homes["dock"], parts=2
    )
    parts = stubs.cluster.SplitCluster(request, timeout=20).clusters
    assert sum(part.memory_count for part in parts) == 4
    assert [part.cluster_id for part in parts] == [homes["dock"], ""]
    assert members(stubs, namespace) == before
    assert counts(stubs, namespace) == dict.fromkeys(homes.values(), 4)


def test_a_retried_edit_answers_as_the_first_time_and_another_request_under_its_id_is_refused(
    stubs: Stubs, namespace: str, homes: dict[str, str]
) -> None:
    first = merge(stubs, namespace, homes["dock"], [homes["door"]], request_id="once")
    again = merge(stubs, namespace, homes["dock"], [homes["door"]], request_id="once")
    assert (again.moved, again.cluster.cluster_id) == (first.moved, first.cluster.cluster_id)
    assert len(history(stubs, namespace, homes["dock"])) == 1
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "REQUEST_ID_REUSED"):
        merge(stubs, namespace, homes["dock"], [homes["gripper"]], request_id="once")


def test_an_etag_guards_against_other_editors_but_not_against_new_memories(
    stubs: Stubs, namespace: str, homes: dict[str, str]
) -> None:
    update(stubs, namespace, homes["dock"], ["title", "summary", "tags"], title="t", summary="s", tags=["x"])
    etag = one(stubs, namespace, homes["dock"]).etag
    item = types_pb2.MemoryInput(session_id="dock", text=f"{TOPICS['dock']} once more")
    store(stubs, namespace, [item], stream_id="more", level=Level.ACK_LEVEL_ORGANIZED)
    renamed = update(stubs, namespace, homes["dock"], ["title"], etag=etag, title="mine")
    with refused(grpc.StatusCode.ABORTED, "ETAG_MISMATCH") as failures:
        update(stubs, namespace, homes["dock"], ["title"], etag=etag, title="theirs")
    assert failures[0].facts["etag"] == renamed.etag


def test_edits_that_make_no_sense_are_refused_with_the_field(
    stubs: Stubs, namespace: str, homes: dict[str, str]
) -> None:
    with refused(grpc.StatusCode.NOT_FOUND, "NOT_FOUND"):
        merge(stubs, namespace, homes["dock"], ["c9999"])
    with refused(grpc.StatusCode.NOT_FOUND, "NOT_FOUND"):
        update(stubs, namespace, "c9999", ["title"], title="x")
    with refused(grpc.StatusCode.INVALID_ARGUMENT) as failures:
        merge(stubs, namespace, homes["dock"], [homes["dock"]])
    assert failures[0].fields == ("source_cluster_ids",)
    assert "must not name the target" in failures[0].message
    with refused(grpc.StatusCode.INVALID_ARGUMENT) as failures:
        update(stubs, namespace, homes["dock"], ["memory_count"], memory_count=3)
    assert failures[0].fields == ("update_mask.paths",)
    update(stubs, namespace, homes["door"], ["title"], title="Doors")
    with refused(grpc.StatusCode.INVALID_ARGUMENT) as failures:
        update(stubs, namespace, homes["dock"], ["title"], title="Doors")
    assert failures[0].fields == ("cluster.title",)
    with refused(grpc.StatusCode.FAILED_PRECONDITION, "CLUSTER_STATE"):
        request = pb.SplitClusterRequest(edit=pb.Edit(namespace=namespace), cluster_id=homes["dock"], parts=16)
        stubs.cluster.SplitCluster(request, timeout=20)
    with refused(grpc.StatusCode.NOT_FOUND, "NOT_FOUND"):
        move = pb.MoveMemoriesRequest(
            edit=pb.Edit(namespace=namespace), target_cluster_id=homes["dock"], memory_ids=["door-0", "nobody"]
        )
        stubs.cluster.MoveMemories(move, timeout=20)
    for groups, told in ((["door-0"], "is not in"), ([f"dock-{i}" for i in range(4)], "must leave cluster")):
        with refused(grpc.StatusCode.INVALID_ARGUMENT) as failures:
            split = pb.SplitClusterRequest(
                edit=pb.Edit(namespace=namespace),
                cluster_id=homes["dock"],
                groups=pb.MemoryGroups(groups=[pb.MemoryGroup(memory_ids=groups)]),
            )
            stubs.cluster.SplitCluster(split, timeout=20)
        assert told in failures[0].message
    assert counts(stubs, namespace) == dict.fromkeys(homes.values(), 4)


def test_edits_survive_a_kill(make_server: Callable[..., ServerProcess]) -> None:
    server = make_server().start()
    stubs = server.connect()
    items = [
        types_pb2.MemoryInput(memory_id=f"{topic}-{i}", session_id=topic, text=f"{text} number {i}")
        for topic, text in TOPICS.items()
        for i in range(4)
    ]
    store(stubs, "robots", items, level=Level.ACK_LEVEL_ORGANIZED)
    homes = {topic: get(stubs, "robots", f"{topic}-0").cluster_id for topic in TOPICS}
    merge(stubs, "robots", homes["dock"], [homes["door"]])
    request = pb.MoveMemoriesRequest(
        edit=pb.Edit(namespace="robots"), target_cluster_id=homes["gripper"], memory_ids=["door-1"]
    )
    stubs.cluster.MoveMemories(request, timeout=20)
    before = members(stubs, "robots")
    server.kill()
    stubs = server.start().connect()
    assert members(stubs, "robots") == before
    assert counts(stubs, "robots") == {home: len(group) for home, group in before.items()}
    for topic, text in TOPICS.items():
        hits = ask(stubs, "robots", f"{text} number 1", max_memories=12)
        assert [hit.memory.memory_id for hit in hits].count(f"{topic}-1") == 1
    entries = history(stubs, "robots", homes["dock"])
    assert all(newer.time.ToNanoseconds() >= older.time.ToNanoseconds() for newer, older in pairwise(entries))
