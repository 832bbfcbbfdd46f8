"""Nothing lost, nothing doubled: kills in the middle of edits, many writers at once, counters that add up."""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial

import grpc
import pytest
from clag.v1 import admin_service_pb2 as admin
from clag.v1 import cluster_service_pb2 as cluster_pb
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from google.protobuf.field_mask_pb2 import FieldMask

from tests.support.catalog_file import seen, wait_until
from tests.support.ingest import IngestStream, store, texts
from tests.support.process import ServerProcess, Stubs
from tests.support.reads import ask, clusters, get, listed
from tests.support.transfer import ImportStream, export, load

TIMEOUT_S = 60.0
DURABLE = pb.ACK_LEVEL_DURABLE
ORGANIZED = pb.ACK_LEVEL_ORGANIZED
TOPICS = ("battery pack voltage", "violin sonata concert", "gripper slips on boxes", "elevator door sensor")


def items(count: int) -> list[types_pb2.MemoryInput]:
    """Memories of four topics in sessions of their own; no two texts are alike."""
    return [
        types_pb2.MemoryInput(
            memory_id=f"m{n}", session_id=f"s{n % 4}", text=f"{TOPICS[n % 4]} code{n}", tags=["all"]
        )
        for n in range(count)
    ]


def tagged(tag: str) -> types_pb2.Filter:
    value = types_pb2.AttributeValue(string_value=tag)
    return types_pb2.Filter(
        comparison=types_pb2.Comparison(
            field=types_pb2.FILTER_FIELD_TAG, op=types_pb2.FILTER_OPERATOR_EQ, value=value
        )
    )


def outcomes(stubs: Stubs, namespace: str) -> admin.GetStatsResponse:
    return stubs.admin.GetStats(admin.GetStatsRequest(namespace=namespace), timeout=20)


def assert_each_once(stubs: Stubs, namespace: str, ids: set[str]) -> None:
    """Each memory is there, in one cluster that exists and counts it, and is found once by its own words."""
    found = listed(stubs, namespace, page_size=1000)
    assert Counter(memory.memory_id for memory in found) == dict.fromkeys(ids, 1)
    homes = Counter(memory.cluster_id for memory in found if memory.cluster_id)
    assert homes == {c.cluster_id: c.memory_count for c in clusters(stubs, namespace) if c.memory_count}
    for memory in found[:: max(1, len(found) // 6)]:
        hits = [hit.memory.memory_id for hit in ask(stubs, namespace, memory.text, max_memories=64)]
        assert hits[0] == memory.memory_id
        assert max(Counter(hits).values()) == 1
    stats = outcomes(stubs, namespace)
    assert stats.memories.total == stats.outcomes.created - stats.outcomes.deleted == len(ids)


@contextmanager
def meanwhile(work: Callable[[], object]) -> Iterator[None]:
    """Run calls beside the block until the server is gone."""

    def run() -> None:
        with suppress(grpc.RpcError):  # the server was killed in the middle of one
            work()

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


def regroup(stubs: Stubs, namespace: str, done: threading.Semaphore) -> None:
    """Merge, split, move and rewrite until the server goes away; counts the answers."""
    edit = cluster_pb.Edit(namespace=namespace)
    for turn in range(10_000):
        homes = [one.cluster_id for one in sorted(clusters(stubs, namespace), key=lambda one: -one.memory_count)]
        try:
            if turn % 4 == 0 and len(homes) > 1:
                merge = cluster_pb.MergeClustersRequest(
                    edit=edit, target_cluster_id=homes[0], source_cluster_ids=homes[1:]
                )
                stubs.cluster.MergeClusters(merge, timeout=20)
            elif turn % 4 == 2:
                moved = [f"m{n % 120}" for n in range(turn, turn + 40)]
                move = cluster_pb.MoveMemoriesRequest(edit=edit, target_cluster_id=homes[-1], memory_ids=moved)
                stubs.cluster.MoveMemories(move, timeout=20)
            else:
                split = cluster_pb.SplitClusterRequest(edit=edit, cluster_id=homes[0], parts=3)
                stubs.cluster.SplitCluster(split, timeout=20)
        except grpc.RpcError as error:
            # The organizer works on the same clusters: an edit may come too late for one.
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise
        else:
            done.release()


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that the tests of this file kill and start again; its data grows over all of them."""
    with ServerProcess(tmp_path_factory.mktemp("mortal")) as server:
        yield server.start()


def memories_in(namespace: str) -> str:
    return f"SELECT count(*) FROM memories JOIN namespaces USING (ns) WHERE name = '{namespace}'"  # noqa: S608


def wait_for(stubs: Stubs, begun: admin.Operation) -> None:
    """Wait until an operation has succeeded."""
    watch = admin.WatchOperationRequest(operation_id=begun.operation_id)
    end = [response.operation for response in stubs.admin.WatchOperation(watch, timeout=TIMEOUT_S)][-1]
    assert end.state == admin.OPERATION_STATE_SUCCEEDED, end


def test_a_kill_in_the_middle_of_merges_splits_and_moves_leaves_each_memory_in_one_cluster(
    mortal: ServerProcess, namespace: str
) -> None:
    stubs = mortal.connect()
    store(stubs, namespace, items(120), level=ORGANIZED)
    for answered in (6, 11):
        done = threading.Semaphore(0)
        with meanwhile(partial(regroup, stubs, namespace, done)):
            for _ in range(answered):
                assert done.acquire(timeout=TIMEOUT_S)
            mortal.kill()
        stubs = mortal.start().connect()
        assert_each_once(stubs, namespace, {f"m{n}" for n in range(120)})


def test_a_delete_by_filter_that_a_kill_cut_off_is_finished_by_the_next_call(
    mortal: ServerProcess, namespace: str
) -> None:
    stubs = mortal.connect()
    store(stubs, namespace, items(2_501), level=DURABLE)
    store(stubs, namespace, [types_pb2.MemoryInput(memory_id="kept", text="the lamp is on")], stream_id="kept")
    request = pb.DeleteMemoriesRequest(namespace=namespace, filter=tagged("all"))
    with meanwhile(lambda: stubs.memory.DeleteMemories(request, timeout=30)):
        wait_until(mortal.data_dir, f"SELECT deleted FROM namespaces WHERE name = '{namespace}'")  # noqa: S608
        mortal.kill()
    left = seen(mortal.data_dir, memories_in(namespace)) - 1
    assert 0 < left < 2_501
    stubs = mortal.start().connect()
    deleted = 0
    while True:
        answer = stubs.memory.DeleteMemories(request, timeout=30)
        deleted += answer.deleted
        if answer.complete:
            break
    assert deleted == left
    assert_each_once(stubs, namespace, {"kept"})


def test_a_namespace_whose_deletion_was_killed_goes_whole_after_the_restart_and_alone(
    mortal: ServerProcess, namespace: str
) -> None:
    stubs = mortal.connect()
    neighbour = f"{namespace}-1"
    store(stubs, namespace, items(2_000), level=DURABLE)
    store(stubs, neighbour, items(40), level=ORGANIZED)
    begun = stubs.admin.DeleteNamespace(admin.DeleteNamespaceRequest(namespace=namespace), timeout=20).operation
    wait_until(mortal.data_dir, f"SELECT ({memories_in(namespace)}) < 2000")
    mortal.kill()
    assert seen(mortal.data_dir, memories_in(namespace)) > 0
    stubs = mortal.start().connect()
    wait_for(stubs, begun)
    assert seen(mortal.data_dir, memories_in(namespace)) == 0
    assert_each_once(stubs, neighbour, {f"m{n}" for n in range(40)})
    store(stubs, namespace, texts("the lamp is on"))
    assert [memory.text for memory in listed(stubs, namespace)] == ["the lamp is on"]


def test_an_import_that_is_killed_between_acknowledgements_goes_on_without_a_loss_or_a_double(
    mortal: ServerProcess, namespace: str
) -> None:
    stubs = mortal.connect()
    copy = f"{namespace}-copy"
    store(stubs, namespace, items(400), level=ORGANIZED)
    rows = export(stubs, namespace, include_embeddings=True)
    stream = ImportStream(stubs, copy, keep_organization=True)
    for start in range(0, len(rows), 8):
        stream.batch(rows[start : start + 8])
    wait_until(mortal.data_dir, memories_in(copy))
    mortal.kill()
    stream.failure()
    stubs = mortal.start().connect()
    with ImportStream(stubs, copy, keep_organization=True) as again:
        assert 1 < again.next_seq < len(rows)
        for start in range(again.next_seq - 1, len(rows), 64):
            again.batch(rows[start : start + 64])
        finished = again.finish()
    assert (finished.imported, finished.duplicates, finished.rejected) == (len(rows), 0, 0)
    assert_each_once(stubs, copy, {f"m{n}" for n in range(400)})


def as_if(mortal: ServerProcess, statement: str, *values: str) -> Stubs:
    """Kill the server, change its catalog, and start it again."""
    mortal.kill()
    with closing(sqlite3.connect(mortal.data_dir / "catalog.db")) as catalog:
        catalog.execute(statement, values)
        catalog.commit()
    return mortal.start().connect()


def test_a_kill_while_a_namespace_is_embedded_again_leaves_one_space_and_every_memory(
    mortal: ServerProcess, namespace: str
) -> None:
    store(mortal.connect(), namespace, items(900))
    other = "UPDATE namespaces SET embedder_name = 'another', embedder_fingerprint = 'f00d' WHERE name = ?"
    stubs = as_if(mortal, other, namespace)
    request = admin.ReindexRequest(namespace=namespace, embedding_model="scripted-embedder")
    begun = stubs.admin.Reindex(request, timeout=20).operation
    mortal.kill()
    assert seen(mortal.data_dir, "SELECT count(*) FROM namespaces WHERE embedder_name = 'another'") == 1
    stubs = mortal.start().connect()
    wait_for(stubs, begun)
    assert_each_once(stubs, namespace, {f"m{n}" for n in range(900)})


def test_an_id_works_through_evolution_split_merge_move_and_rebuild_also_under_another_host_name(
    mortal: ServerProcess, namespace: str
) -> None:
    stubs = mortal.connect()
    store(stubs, namespace, items(40), level=DURABLE)
    read = [get(stubs, namespace, "m8").text]
    store(stubs, namespace, texts("the lamp is on"), stream_id="w", level=ORGANIZED)
    read.append(get(stubs, namespace, "m8").text)
    edit = cluster_pb.Edit(namespace=namespace)
    home = get(stubs, namespace, "m8").cluster_id
    split = cluster_pb.SplitClusterRequest(edit=edit, cluster_id=home, parts=2)
    target, source = (one.cluster_id for one in stubs.cluster.SplitCluster(split, timeout=20).clusters)
    read.append(get(stubs, namespace, "m8").text)
    merge = cluster_pb.MergeClustersRequest(edit=edit, target_cluster_id=target, source_cluster_ids=[source])
    stubs.cluster.MergeClusters(merge, timeout=20)
    read.append(get(stubs, namespace, "m8").text)
    other = next(one.cluster_id for one in clusters(stubs, namespace) if one.cluster_id != target)
    move = cluster_pb.MoveMemoriesRequest(edit=edit, target_cluster_id=other, memory_ids=["m8"])
    stubs.cluster.MoveMemories(move, timeout=20)
    assert get(stubs, namespace, "m8").cluster_id == other
    begun = stubs.admin.Reindex(admin.ReindexRequest(namespace=namespace), timeout=20).operation
    stubs = as_if(mortal, "UPDATE counters SET owner = ?", "another-host:1:0badcafe")  # as that machine left it
    wait_for(stubs, begun)
    read.append(get(stubs, namespace, "m8").text)
    assert set(read) == {f"{TOPICS[0]} code8"}
    assert ask(stubs, namespace, read[0])[0].memory.memory_id == "m8"
    store(stubs, namespace, texts("the lamp is off"), stream_id="after", level=ORGANIZED)
    assert {memory.state for memory in listed(stubs, namespace)} == {types_pb2.MEMORY_STATE_EVOLVED}


def test_eight_writers_of_one_session_store_everything_each_in_its_order(stubs: Stubs, namespace: str) -> None:
    failures: list[Exception] = []

    def write(writer: int) -> None:
        try:
            with IngestStream(stubs, namespace, f"w{writer}") as stream:
                for start in range(0, 100, 5):
                    numbers = range(start, start + 5)
                    stream.batch(
                        [types_pb2.MemoryInput(text=f"w{writer} note {n}", session_id="shared") for n in numbers]
                    )
                assert stream.finish().created == 100
        except (AssertionError, grpc.RpcError) as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(8)]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join(TIMEOUT_S)
    assert not failures
    found = sorted(listed(stubs, namespace, page_size=1000), key=lambda memory: memory.session_position)
    assert len({memory.session_position for memory in found}) == len(found) == 800
    for writer in range(8):
        own = [memory.text for memory in found if memory.text.startswith(f"w{writer} ")]
        assert own == [f"w{writer} note {n}" for n in range(100)]


def test_counters_add_up_over_updates_deletes_and_imports(stubs: Stubs, namespace: str) -> None:
    store(stubs, namespace, items(60), level=ORGANIZED)
    rows = export(stubs, namespace, include_embeddings=True)
    update = pb.UpdateMemoryRequest(
        namespace=namespace,
        memory_id="m1",
        memory=types_pb2.MemoryInput(text="the lamp above the gate"),
        update_mask=FieldMask(paths=["text"]),
    )
    stubs.memory.UpdateMemory(update, timeout=20)
    for number in range(10):
        stubs.memory.DeleteMemory(pb.DeleteMemoryRequest(namespace=namespace, memory_id=f"m{number}"), timeout=20)
    before = outcomes(stubs, namespace).outcomes
    assert (before.created, before.deleted) == (60, 10)
    kept, _ = load(stubs, namespace, rows, on_conflict=admin.IMPORT_CONFLICT_KEEP)
    assert kept.imported + kept.duplicates + kept.rejected == len(rows)
    replaced, _ = load(stubs, namespace, rows, stream_id="r", on_conflict=admin.IMPORT_CONFLICT_REPLACE)
    assert replaced.imported + replaced.duplicates + replaced.rejected == len(rows)
    bad = admin.ExportRecord(memory=types_pb2.Memory(memory_id="bad id", text="x"))
    refused, rejections = load(stubs, namespace, [bad], stream_id="bad")
    assert (refused.rejected, len(rejections)) == (1, 1)
    stats = outcomes(stubs, namespace)
    found = listed(stubs, namespace, page_size=1000)
    assert stats.memories.total == stats.outcomes.created - stats.outcomes.deleted == len(found) == 60
    states = ("stored", "embedded", "routed", "evolved", "quarantined")
    assert sum(getattr(stats.memories, state) for state in states) == 60
    assert stats.outcomes.rejected == 1
    assert sum(cluster.memory_count for cluster in clusters(stubs, namespace)) == 60


def test_a_bulk_of_a_thousand_that_is_cut_at_five_hundred_goes_on_at_the_next(stubs: Stubs, namespace: str) -> None:
    sent = items(1_000)
    with IngestStream(stubs, namespace) as stream:
        for start in range(0, 500, 50):
            stream.batch(sent[start : start + 50])
        stream.acked()
        stream.call.cancel()
    with IngestStream(stubs, namespace) as again:
        assert again.opened.next_seq == 501
        for start in range(500, 1_000, 50):
            again.batch(sent[start : start + 50])
        assert again.finish().created == 1_000
    assert [memory.memory_id for memory in listed(stubs, namespace, page_size=1000)] == [
        f"m{n}" for n in range(1000)
    ]
