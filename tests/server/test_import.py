"""Import: a namespace comes back the same; what goes wrong costs one row at most."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from clag.v1 import admin_service_pb2 as pb
from clag.v1 import memory_service_pb2 as memory_pb
from clag.v1 import types_pb2

from tests.conftest import ServerMaker
from tests.support.process import Stubs
from tests.support.reads import ask, clusters, get, listed
from tests.support.transfer import ImportStream, export, load
from tests.support.transferred import (
    QUESTIONS,
    clusters_of,
    filled,
    found,
    memories_of,
    runs,
    settled,
    without_numbers,
)


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
    episodes = [runs(memories_of(side)) for side in (rows, back)]
    assert episodes[0] == episodes[1]
    for question in QUESTIONS:
        assert found(stubs, target, question) == found(stubs, source, question)


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
    assert runs(memories_of(rows)) == runs(memories_of(back))
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


def rows_text(rows: Sequence[pb.ExportRecord], memory_id: str) -> str:
    return next(record.memory.text for record in rows if record.memory.memory_id == memory_id)
