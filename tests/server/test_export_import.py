"""Export and Import: a namespace leaves whole and comes back the same; what goes wrong costs one row at most."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import grpc
import psutil
import pytest
from clag.v1 import admin_service_pb2 as pb
from clag.v1 import memory_service_pb2 as memory_pb
from clag.v1 import types_pb2

from tests.conftest import ServerMaker
from tests.support.ingest import store
from tests.support.process import Stubs
from tests.support.reads import ask, clusters, get, listed
from tests.support.status import read
from tests.support.transfer import TIMEOUT_S, ImportStream, export, load

ORGANIZED = memory_pb.ACK_LEVEL_ORGANIZED
TOPICS = (
    "the dock in bay",
    "the battery of arm",
    "the red pallet in aisle",
    "the visitor at gate",
    "the lamp above",
)
QUESTIONS = ("where is the dock", "which battery is low", "what of the pallet", "who came to the gate", "lamp")


def filled(stubs: Stubs, namespace: str, count: int = 90) -> str:
    """A namespace with organized memories of several sessions, kinds, tags and attributes."""
    items = []
    for n in range(count):
        item = types_pb2.MemoryInput(
            memory_id=f"m{n}",
            text=f"{TOPICS[n % 5]} {n} was seen at {n % 24} o'clock",
            session_id=f"s{n % 3}",
            speaker="Anna" if n % 2 else "Kestrel",
            kind=types_pb2.MEMORY_KIND_OBSERVATION,
            tags=[f"tag{n % 4}"],
            importance=0.0 if n == 7 else 0.75,
            supersedes=[f"m{n - 5}"] if n % 20 == 10 else [],
        )
        item.attributes["n"].int_value = n
        item.attributes["ratio"].double_value = n / 4
        item.event_time.FromSeconds(1_772_000_000 + 3_600 * n)
        items.append(item)
    store(stubs, namespace, items, stream_id="fill", level=ORGANIZED)
    settled(stubs, namespace)
    return namespace


def settled(stubs: Stubs, namespace: str) -> None:
    """Wait until nothing waits to be organized and clusters keep still."""
    seen: Any = None
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        stats = stubs.admin.GetStats(pb.GetStatsRequest(namespace=namespace), timeout=20)
        now = (stats.revision.token, [(b.stage, b.pending) for b in stats.backlog if b.pending])
        if now == seen and not now[1]:
            return
        seen = now
        with_pause()
    raise AssertionError(f"{namespace} did not settle: {seen}")


def with_pause() -> None:
    """Give the pipeline its turn before it is asked again."""
    time.sleep(0.1)


def memories_of(records: Sequence[pb.ExportRecord]) -> list[types_pb2.Memory]:
    return [record.memory for record in records if record.HasField("memory")]


def clusters_of(records: Sequence[pb.ExportRecord]) -> list[types_pb2.Cluster]:
    return [record.cluster for record in records if record.HasField("cluster")]


def without_numbers(memory: types_pb2.Memory, titles: dict[str, str]) -> dict[str, Any]:
    """A memory without what must differ in another namespace: numbers of clusters and episodes, revision, etag."""
    plain = types_pb2.Memory()
    plain.CopyFrom(memory)
    plain.cluster_id = titles.get(memory.cluster_id, "")
    plain.ClearField("episode_id")
    plain.ClearField("etag")
    plain.ClearField("revision")
    plain.ClearField("access_count")
    plain.ClearField("last_access_time")
    for candidate in plain.routing.candidates:
        candidate.cluster_id = titles.get(candidate.cluster_id, "")
    kept = [c for c in plain.routing.candidates if c.cluster_id]
    del plain.routing.candidates[:]
    plain.routing.candidates.extend(kept)
    for candidate in plain.routing.candidates:
        candidate.ClearField("cosine_z")
    return {"bytes": plain.SerializeToString(deterministic=True), "id": plain.memory_id}


def found(stubs: Stubs, namespace: str, question: str) -> list[tuple[str, float]]:
    return [(hit.memory.memory_id, round(hit.score, 5)) for hit in ask(stubs, namespace, question, max_memories=20)]


def test_a_round_trip_gives_the_same_memories_clusters_links_and_answers(stubs: Stubs, namespace: str) -> None:
    source = filled(stubs, namespace)
    rows = export(stubs, source, include_embeddings=True)
    target = f"{namespace}-b"
    finished, rejections = load(stubs, target, rows, keep_organization=True)
    assert (finished.imported, finished.duplicates, finished.rejected, rejections) == (len(rows), 0, 0, [])
    settled(stubs, target)
    back = export(stubs, target, include_embeddings=True)
    before, after = clusters_of(rows), clusters_of(back)
    titles = [{one.cluster_id: one.title for one in side} for side in (before, after)]
    assert len(set(titles[0].values())) == len(before)
    assert [without_numbers(m, titles[0]) for m in memories_of(rows)] == [
        without_numbers(m, titles[1]) for m in memories_of(back)
    ]
    described = [
        sorted(
            (
                c.title,
                c.summary,
                tuple(c.tags),
                c.memory_count,
                c.episode_count,
                tuple(c.representative_ids),
                c.state,
            )
            for c in side
        )
        for side in (before, after)
    ]
    assert described[0] == described[1]
    assert any(memory.links for memory in memories_of(back))
    assert any(memory.superseded_by for memory in memories_of(back))
    for question in QUESTIONS:
        assert found(stubs, target, question) == found(stubs, source, question)
        words = [hit.memory.memory_id for hit in ask(stubs, target, question, slm_use=memory_pb.SLM_USE_NEVER)]
        assert words


def test_an_export_is_of_one_moment_while_writes_go_on(stubs: Stubs, namespace: str) -> None:
    filled(stubs, namespace, 300)
    call = stubs.admin.Export(pb.ExportRequest(namespace=namespace), timeout=TIMEOUT_S)
    first = next(call)
    store(stubs, namespace, [types_pb2.MemoryInput(memory_id="late", text="too late")], stream_id="late")
    stubs.memory.DeleteMemory(memory_pb.DeleteMemoryRequest(namespace=namespace, memory_id="m299"))
    rest = list(call)
    records = [record for response in (first, *rest) for record in response.records]
    ids = {memory.memory_id for memory in memories_of(records)}
    assert ids == {f"m{n}" for n in range(300)}
    assert {response.total for response in (first, *rest)} == {len(records)}
    assert len({response.snapshot.token for response in (first, *rest)}) == 1
    assert [bool(response.cursor) for response in (first, *rest)] == [True] * len(rest) + [False]
    assert records[0].HasField("namespace")


def test_an_export_goes_on_at_any_cursor_also_after_the_server_was_killed(make_server: ServerMaker) -> None:
    server = make_server()
    stubs = server.start().connect()
    filled(stubs, "kept", 300)
    request = pb.ExportRequest(namespace="kept", include_embeddings=True)
    whole = list(stubs.admin.Export(request, timeout=TIMEOUT_S))
    server.kill()
    stubs = server.start().connect()
    store(stubs, "kept", [types_pb2.MemoryInput(text="came after the snapshot")], stream_id="later")
    for done in range(1, len(whole)):
        request.cursor = whole[done - 1].cursor
        rest = [r for response in stubs.admin.Export(request, timeout=TIMEOUT_S) for r in response.records]
        assert rest == [r for response in whole[done:] for r in response.records]


def test_a_cursor_of_another_export_is_refused_and_one_without_its_snapshot_is_gone(
    make_server: ServerMaker,
) -> None:
    server = make_server()
    stubs = server.start().connect()
    for name in ("one", "two"):
        filled(stubs, name, 200)
    call = stubs.admin.Export(pb.ExportRequest(namespace="one"), timeout=TIMEOUT_S)
    cursor = next(call).cursor
    call.cancel()
    for wrong in (
        pb.ExportRequest(namespace="two", cursor=cursor),
        pb.ExportRequest(namespace="one", cursor=cursor, include_embeddings=True),
        *(pb.ExportRequest(namespace="one", cursor=cursor[:-cut]) for cut in (1, 2, 3, 9)),
        pb.ExportRequest(namespace="one", cursor="nonsense"),
    ):
        status = _export_failure(stubs, wrong)
        assert (status.code, status.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "PAGE_TOKEN_MISMATCH")
    for directory in (server.data_dir / "exports").iterdir():
        for file in directory.iterdir():
            file.unlink()
        directory.rmdir()
    assert (
        _export_failure(stubs, pb.ExportRequest(namespace="one", cursor=cursor)).code
        is grpc.StatusCode.OUT_OF_RANGE
    )


def test_there_are_only_so_many_snapshots_and_finished_ones_make_room(make_server: ServerMaker) -> None:
    server = make_server(storage__export_snapshots_max="2")
    stubs = server.start().connect()
    filled(stubs, "full", 200)
    request = pb.ExportRequest(namespace="full")
    for _ in range(4):  # each is finished when the next begins
        list(stubs.admin.Export(request, timeout=TIMEOUT_S))
    assert len(list((server.data_dir / "exports").iterdir())) == 1
    for _ in range(2):
        call = stubs.admin.Export(request, timeout=TIMEOUT_S)
        next(call)
        call.cancel()
    status = _export_failure(stubs, request)
    assert (status.code, status.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
    assert status.retry_after_s


def test_snapshots_nobody_came_back_for_are_removed(make_server: ServerMaker) -> None:
    server = make_server(storage__export_snapshot_keep_s="0.001")
    stubs = server.start().connect()
    filled(stubs, "left", 100)
    call = stubs.admin.Export(pb.ExportRequest(namespace="left"), timeout=TIMEOUT_S)
    cursor = next(call).cursor
    call.cancel()
    server.terminate()
    stubs = server.start().connect()  # it sweeps at its start
    assert (
        _export_failure(stubs, pb.ExportRequest(namespace="left", cursor=cursor)).code
        is grpc.StatusCode.OUT_OF_RANGE
    )


def test_a_filter_and_embeddings_are_as_asked(stubs: Stubs, namespace: str) -> None:
    filled(stubs, namespace, 40)
    wanted = types_pb2.Filter(
        comparison=types_pb2.Comparison(
            field=types_pb2.FILTER_FIELD_TAG,
            op=types_pb2.FILTER_OPERATOR_EQ,
            value=types_pb2.AttributeValue(string_value="tag1"),
        )
    )
    memories = memories_of(export(stubs, namespace, filter=wanted))
    assert [m.memory_id for m in memories] == [f"m{n}" for n in range(40) if n % 4 == 1]
    assert not any(m.embedding for m in memories)
    assert all(m.embedding for m in memories_of(export(stubs, namespace, include_embeddings=True)))


def test_an_export_that_nobody_reads_costs_no_memory(make_server: ServerMaker) -> None:
    server = make_server(storage__export_snapshots_max="20")
    stubs = server.start().connect()
    items = [types_pb2.MemoryInput(text=f"{n} " + "x" * 12_000) for n in range(3000)]
    store(stubs, "large", items, level=memory_pb.ACK_LEVEL_DURABLE)
    process = psutil.Process(server.pid)
    list(stubs.admin.Export(pb.ExportRequest(namespace="large"), timeout=TIMEOUT_S))
    before = process.memory_info().rss
    stuck = [stubs.admin.Export(pb.ExportRequest(namespace="large"), timeout=TIMEOUT_S) for _ in range(10)]
    for call in stuck:
        next(call)
    grown = process.memory_info().rss - before
    for call in stuck:
        call.cancel()
    # Ten copies of 36 MB would be 360 MB.
    assert grown < 150_000_000


def test_without_embeddings_memories_are_embedded_and_stay_where_they_were(stubs: Stubs, namespace: str) -> None:
    source = filled(stubs, namespace)
    rows = export(stubs, source)
    target = f"{namespace}-b"
    load(stubs, target, rows, keep_organization=True)
    settled(stubs, target)
    back = export(stubs, target)
    titles = [{one.cluster_id: one.title for one in clusters_of(side)} for side in (rows, back)]
    homes = [
        {m.memory_id: t[m.cluster_id] for m in memories_of(s)} for s, t in zip((rows, back), titles, strict=True)
    ]
    assert homes[0] == homes[1]
    kept = ("context", "keywords", "evolved_tags", "links", "superseded_by", "confidence", "annotated_by", "state")
    for was, now in zip(memories_of(rows), memories_of(back), strict=True):
        assert [getattr(was, name) for name in kept] == [getattr(now, name) for name in kept]
    episodes = [_runs(memories_of(side)) for side in (rows, back)]
    assert episodes[0] == episodes[1]
    for question in QUESTIONS:
        assert found(stubs, target, question) == found(stubs, source, question)


def _runs(memories: Sequence[types_pb2.Memory]) -> set[tuple[str, ...]]:
    """Episodes by their members."""
    members: dict[str, list[str]] = {}
    for memory in memories:
        members.setdefault(memory.episode_id, []).append(memory.memory_id)
    return {tuple(ids) for ids in members.values()}


def test_without_keeping_the_organization_ids_times_and_attributes_stay_and_all_else_is_new(
    stubs: Stubs, namespace: str
) -> None:
    rows = export(stubs, filled(stubs, namespace, 60), include_embeddings=True)
    target = f"{namespace}-b"
    load(stubs, target, rows)
    settled(stubs, target)
    kept = ("memory_id", "text", "kind", "speaker", "session_id", "tags", "importance", "event_time", "create_time")
    for was, now in zip(memories_of(rows), memories_of(export(stubs, target)), strict=True):
        assert [getattr(was, name) for name in kept] == [getattr(now, name) for name in kept]
        assert dict(was.attributes) == dict(now.attributes)
        assert now.state == types_pb2.MEMORY_STATE_EVOLVED
    assert sum(cluster.memory_count for cluster in clusters(stubs, target)) == 60


def test_bad_rows_are_rejected_with_the_field_and_the_others_are_stored(stubs: Stubs, namespace: str) -> None:
    good = types_pb2.Memory(memory_id="good", text="a good row")
    rows = [
        pb.ExportRecord(memory=types_pb2.Memory(memory_id="empty", text="")),
        pb.ExportRecord(memory=types_pb2.Memory(text="no id")),
        pb.ExportRecord(),
        pb.ExportRecord(memory=types_pb2.Memory(memory_id="x", text="x", confidence=float("nan"))),
        pb.ExportRecord(memory=types_pb2.Memory(memory_id="x", text="x", context="y" * 5000)),
        pb.ExportRecord(memory=types_pb2.Memory(memory_id="x", text="x", superseded_by="not an id")),
        pb.ExportRecord(cluster=types_pb2.Cluster(title="no id")),
        pb.ExportRecord(memory=types_pb2.Memory(memory_id="x", text="x", embedding=[float("inf")])),
        pb.ExportRecord(memory=good),
    ]
    finished, rejections = load(stubs, namespace, rows, keep_organization=True)
    assert [(r.seq, r.error.field) for r in rejections] == [
        (1, "memory.text"),
        (2, "memory.memory_id"),
        (3, "record"),
        (4, "memory.confidence"),
        (5, "memory.context"),
        (6, "memory.superseded_by"),
        (7, "cluster.cluster_id"),
        (8, "memory.embedding[0]"),
    ]
    assert (finished.imported, finished.rejected) == (1, 8)
    assert [memory.text for memory in listed(stubs, namespace)] == ["a good row"]


@pytest.mark.parametrize("keep_organization", [False, True])
def test_rows_whose_ids_are_there_are_left_out_or_replace_what_is_there(
    stubs: Stubs, namespace: str, keep_organization: bool
) -> None:
    rows = export(stubs, filled(stubs, namespace, 40), include_embeddings=True)
    changed = [pb.ExportRecord() for _ in rows]
    for new, old in zip(changed, rows, strict=True):
        new.CopyFrom(old)
        if new.HasField("memory"):
            new.memory.text = f"replaced {new.memory.text}"
    options = {"keep_organization": keep_organization}
    kept, _ = load(stubs, namespace, changed, stream_id="keep", **options)
    assert kept.duplicates == 40
    assert get(stubs, namespace, "m3").text == rows_text(rows, "m3")
    replaced, _ = load(stubs, namespace, changed, stream_id="r", on_conflict=pb.IMPORT_CONFLICT_REPLACE, **options)
    assert replaced.duplicates == 0
    settled(stubs, namespace)
    memories = listed(stubs, namespace, page_size=1000)
    assert [memory.memory_id for memory in memories] == [f"m{n}" for n in range(40)]
    assert all(memory.text.startswith("replaced ") for memory in memories)
    assert sum(cluster.memory_count for cluster in clusters(stubs, namespace)) == 40
    assert len({hit.memory.memory_id for hit in ask(stubs, namespace, "dock", max_memories=100)}) == len(
        ask(stubs, namespace, "dock", max_memories=100)
    )
    back = export(stubs, namespace)
    same, _ = load(stubs, namespace, back, stream_id="same", on_conflict=pb.IMPORT_CONFLICT_REPLACE)
    assert (same.imported, same.duplicates) == (len(back) - 40, 40)
    places = [
        [(m.memory_id, m.etag, m.cluster_id, m.episode_id) for m in memories_of(rows)]
        for rows in (back, export(stubs, namespace))
    ]
    assert places[0] == places[1]


def rows_text(rows: Sequence[pb.ExportRecord], memory_id: str) -> str:
    return next(record.memory.text for record in rows if record.memory.memory_id == memory_id)


def test_an_import_that_is_cut_off_by_kills_loses_and_doubles_nothing(make_server: ServerMaker) -> None:
    server = make_server()
    stubs = server.start().connect()
    rows = export(stubs, filled(stubs, "from", 120), include_embeddings=True)
    sent = 0
    while sent < len(rows):
        with ImportStream(stubs, "to", keep_organization=True) as stream:
            sent = stream.next_seq - 1
            for start in range(sent, min(sent + 60, len(rows)), 10):
                stream.batch(rows[start : start + 10])
                sent = start + 10
            stream.acked()
            server.kill()
        stubs = server.start().connect()
    with ImportStream(stubs, "to", keep_organization=True) as stream:
        assert stream.opened.next_seq == len(rows) + 1
        finished = stream.finish()
    assert (finished.imported, finished.duplicates, finished.rejected) == (len(rows), 0, 0)
    settled(stubs, "to")
    back = export(stubs, "to", include_embeddings=True)
    assert [m.memory_id for m in memories_of(back)] == [m.memory_id for m in memories_of(rows)]
    assert _runs(memories_of(rows)) == _runs(memories_of(back))
    counts = [sorted((c.title, c.memory_count) for c in clusters_of(side)) for side in (rows, back)]
    assert counts[0] == counts[1]
    for question in QUESTIONS:
        assert found(stubs, "to", question) == found(stubs, "from", question)


def test_a_new_namespace_takes_the_settings_and_one_in_use_keeps_its_own(stubs: Stubs, namespace: str) -> None:
    settings = pb.NamespaceSettings(purpose="to run a warehouse", auto_reorganize=True)
    row = pb.ExportRecord(namespace=pb.Namespace(namespace="whatever", settings=settings))
    load(stubs, namespace, [row])
    read_back = stubs.admin.GetNamespace(pb.GetNamespaceRequest(namespace=namespace)).namespace.settings
    assert (read_back.purpose, read_back.auto_reorganize) == ("to run a warehouse", True)
    row.namespace.settings.purpose = "something else"
    load(stubs, namespace, [row], stream_id="again")
    kept = stubs.admin.GetNamespace(pb.GetNamespaceRequest(namespace=namespace)).namespace.settings
    assert kept.purpose == "to run a warehouse"


def test_links_to_memories_that_did_not_come_are_left_out(stubs: Stubs, namespace: str) -> None:
    link = types_pb2.MemoryLink(memory_id="never", kind=types_pb2.LINK_KIND_SIMILAR, reason="near")
    later = types_pb2.MemoryLink(memory_id="b", kind=types_pb2.LINK_KIND_CAUSAL, reason="led to it")
    rows = [
        pb.ExportRecord(memory=types_pb2.Memory(memory_id="a", text="the first", links=[link, later])),
        pb.ExportRecord(memory=types_pb2.Memory(memory_id="b", text="the second")),
    ]
    load(stubs, namespace, rows, keep_organization=True)
    assert [one.memory_id for one in get(stubs, namespace, "a").links] == ["b"]
    stubs.memory.DeleteMemory(memory_pb.DeleteMemoryRequest(namespace=namespace, memory_id="b"))
    assert "b" not in [one.memory_id for one in get(stubs, namespace, "a").links]


def _export_failure(stubs: Stubs, request: pb.ExportRequest) -> Any:
    with pytest.raises(grpc.RpcError) as told:
        list(stubs.admin.Export(request, timeout=TIMEOUT_S))
    return read(told.value)
