"""Over the socket: what the language model makes of memories, what it may not touch, and what a client is told."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping

from clag.v1 import admin_service_pb2 as admin
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2

from tests.conftest import ServerMaker
from tests.support.ingest import store
from tests.support.process import ServerProcess, Stubs
from tests.support.reads import ask, get, listed

ORGANIZED = pb.AckLevel.ACK_LEVEL_ORGANIZED
SLM = types_pb2.AnnotationSource.ANNOTATION_SOURCE_SLM
CONTRADICTS = types_pb2.LinkKind.LINK_KIND_CONTRADICTS
FACT = types_pb2.MemoryKind.MEMORY_KIND_FACT
ANSWER: Mapping[str, object] = {"context": "What the dock is like", "keywords": ["dock"], "tags": ["docking"]}
CAUSES: Mapping[str, object] = {"links": [{"n": 1, "kind": "causes", "why": "the dock came first"}], "updates": []}
REWRITES: Mapping[str, object] = {
    "links": [{"n": 1, "kind": "same subject", "why": "the dock"}],
    "updates": [{"n": 1, "context": "An older word on the dock", "tags": ["older"]}],
}


def answers(server: ServerProcess, *values: Mapping[str, object]) -> None:
    """Let the model say these, in turn; the last one from then on."""
    fresh = server.root / "script.new"
    server.root.mkdir(parents=True, exist_ok=True)
    fresh.write_text(json.dumps({"generate": [json.dumps(value) for value in values]}), encoding="utf-8")
    fresh.rename(server.root / "script.json")


def note(memory_id: str, text: str, **fields: object) -> types_pb2.MemoryInput:
    return types_pb2.MemoryInput(memory_id=memory_id, text=text, session_id="s", **fields)  # type: ignore[arg-type]


def history(stubs: Stubs, namespace: str, memory_id: str) -> list[pb.MemoryHistoryEntry]:
    request = pb.ListMemoryHistoryRequest(namespace=namespace, memory_id=memory_id, page_size=1000)
    return list(stubs.memory.ListMemoryHistory(request, timeout=20).entries)


def outcomes(stubs: Stubs, namespace: str) -> admin.OutcomeCounters:
    return stubs.admin.GetStats(admin.GetStatsRequest(namespace=namespace), timeout=20).outcomes


def test_links_and_annotation_of_the_model_are_told_with_kind_reason_and_model(make_server: ServerMaker) -> None:
    server = make_server(organize__annotate="slm")
    answers(server, ANSWER, {**ANSWER, **CAUSES})
    stubs = server.start().connect()
    store(stubs, "n", [note("a", "the dock is new")], level=ORGANIZED)
    store(stubs, "n", [note("b", "the dock lamp is on")], stream_id="2", level=ORGANIZED)
    later = get(stubs, "n", "b")
    assert later.annotated_by == SLM
    assert (later.context, list(later.keywords), list(later.evolved_tags)) == (
        ANSWER["context"],
        ["dock"],
        ["docking"],
    )
    told = {(link.memory_id, link.kind, link.reason) for link in later.links}
    assert ("a", types_pb2.LinkKind.LINK_KIND_CAUSAL, "the dock came first") in told
    assert {entry.model for entry in history(stubs, "n", "b")} == {"", "scripted-slm"}


def test_a_rewritten_neighbour_keeps_its_text_and_its_old_values(make_server: ServerMaker) -> None:
    server = make_server(organize__annotate="slm")
    answers(server, ANSWER, {**ANSWER, **REWRITES})
    stubs = server.start().connect()
    store(stubs, "n", [note("a", "the dock is new")], level=ORGANIZED)
    store(stubs, "n", [note("b", "the dock lamp is on")], stream_id="2", level=ORGANIZED)
    earlier = get(stubs, "n", "a")
    assert (earlier.text, earlier.context) == ("the dock is new", "An older word on the dock")
    (entry,) = [one for one in history(stubs, "n", "a") if one.cause_memory_id == "b"]
    changed = {change.field: json.loads(change.old_value) for change in entry.changes if change.field != "links"}
    assert changed == {"context": ANSWER["context"], "evolved_tags": ["docking"]}


def test_no_memory_changes_another_in_another_cluster(make_server: ServerMaker) -> None:
    server = make_server(organize__annotate="slm")
    answers(server, {**ANSWER, **REWRITES})
    stubs = server.start().connect()
    topics = ("dock charge battery", "violin concert sonata", "ramp snow ice")
    for i, words in enumerate(topics * 2):
        session = f"s{i}"
        items = [types_pb2.MemoryInput(text=f"{words} {n}", session_id=session) for n in range(8)]
        store(stubs, "n", items, stream_id=session, level=ORGANIZED)
    home = {memory.memory_id: memory.cluster_id for memory in listed(stubs, "n")}
    assert len(set(home.values())) > 1
    causes = Counter[bool]()
    for memory_id, cluster in home.items():
        for entry in history(stubs, "n", memory_id):
            if entry.cause_memory_id and entry.cause == pb.HistoryCause.HISTORY_CAUSE_EVOLUTION:
                causes[home[entry.cause_memory_id] == cluster == entry.cluster_id] += 1
    assert causes[True] > 20
    assert causes[False] == 0


def test_a_contradicted_fact_is_told_with_a_question_and_ranks_after_the_newer_one(
    make_server: ServerMaker,
) -> None:
    stubs = make_server().start().connect()
    store(stubs, "n", [note("old", "the dock is in bay 3", kind=FACT)], level=ORGANIZED)
    store(stubs, "n", [note("new", "the dock is in bay 7", kind=FACT)], stream_id="2", level=ORGANIZED)
    newer, older = ask(stubs, "n", "the dock is in bay 3")
    assert (newer.memory.memory_id, older.memory.memory_id) == ("new", "old")
    assert (older.memory.superseded_by, older.memory.confidence) == ("new", 0.5)
    (conflict,) = newer.conflicts
    assert (conflict.memory_id, conflict.newer) == ("old", True)
    assert "bay 3" in conflict.clarifying_question
    assert "bay 7" in conflict.clarifying_question
    assert [link.kind for link in newer.memory.links] == [CONTRADICTS]


def test_one_hit_stands_for_its_duplicates(make_server: ServerMaker) -> None:
    stubs = make_server().start().connect()
    store(stubs, "n", [note(f"m{n}", "the ramp is icy") for n in range(3)], level=ORGANIZED)
    (hit,) = ask(stubs, "n", "icy ramp")
    assert sorted([hit.memory.memory_id, *hit.duplicate_ids]) == ["m0", "m1", "m2"]
    assert len(listed(stubs, "n")) == 3


def test_beyond_the_budget_the_cause_is_counted(make_server: ServerMaker) -> None:
    server = make_server(organize__annotate="slm", organize__slm_calls_per_hour="2")
    answers(server, ANSWER)
    stubs = server.start().connect()
    store(stubs, "n", [note(f"m{n}", f"dock {n} {n}{n}") for n in range(5)], level=ORGANIZED)
    causes = {one.cause: one.count for one in outcomes(stubs, "n").fallbacks}
    assert causes[types_pb2.FallbackCause.FALLBACK_CAUSE_BUDGET] == 3
    assert all(memory.keywords for memory in listed(stubs, "n"))


def test_age_counts_where_the_settings_say_so(make_server: ServerMaker) -> None:
    stubs = make_server(retrieve__recency_weight="0.5").start().connect()
    old = note("old", "the dock lamp is red")
    old.event_time.FromJsonString("2020-01-01T00:00:00Z")
    store(stubs, "n", [old, note("new", "the dock lamp is green")], level=ORGANIZED)
    hits = ask(stubs, "n", "dock lamp", explain=True)
    parts = {hit.memory.memory_id: {part.name: part.value for part in hit.score_parts} for hit in hits}
    assert parts["new"]["recency"] > 0.49
    assert parts["old"].get("recency", 0.0) < 0.01
