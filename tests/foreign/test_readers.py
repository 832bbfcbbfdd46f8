"""What other systems export becomes memories; a bad row is told with its line and costs nothing else."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from clag.v1 import admin_service_pb2 as pb
from clag.v1 import types_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from clag_server import foreign
from clag_server.contract.pool import strict_class
from clag_server.contract.violations import violations
from clag_server.foreign import SYSTEMS, ForeignRow, OtherKind, mem0, read
from clag_server.foreign.reading import Value

MEM0 = """{
  "results": [
    {"id": "3f1c4a52-11aa-4c63-9c8e-0d3b2a1f0001", "memory": "Likes green tea", "hash": "ab12",
     "metadata": {"source": "chat", "turns": 3, "nested": {"a": [1]}}, "score": null,
     "created_at": "2025-04-01T10:00:00.123456-07:00", "updated_at": null, "user_id": "ana", "run_id": "r1",
     "actor_id": "Ana", "categories": ["food", "drinks"], "something_new": true},
    {"id": "2", "memory": ""},
    {"id": "bad id with spaces", "memory": "Works from Lyon", "metadata": null, "created_at": "yesterday"},
    {"id": "bad id with spaces", "memory": "Works from Lyon", "created_at": 1743526800}
  ],
  "relations": [{"source": "ana", "relationship": "lives_in", "destination": "lyon"}]
}
"""

LANGGRAPH = """\
{"namespace": ["users", "ana"], "key": "k1", "value": {"content": "Prefers short answers", "weight": 2}, \
"created_at": "2025-05-01T08:00:00+00:00", "updated_at": "2025-05-02T08:00:00+00:00", "score": 0.4}
{"prefix": "users.bo", "key": "k2", "value": {"kind": "Memory", "content": {"content": "Has two cats"}}}

not json
{"namespace": ["users"], "key": 7, "value": {}}
{"namespace": ["users"], "key": "k3", "value": {"rules": ["be kind"], "n": 1}}
"""

GRAPHITI = json.dumps(
    {
        "episodes": [
            {
                "uuid": "e1",
                "name": "turn 1",
                "group_id": "g1",
                "source": "message",
                "source_description": "chat",
                "content": "Ana: I moved to Lyon",
                "created_at": "2025-06-01T00:00:00.123456789Z",
                "valid_at": "2025-05-30T00:00:00Z[UTC]",
                "entity_edges": ["x1"],
            }
        ],
        "edges": [
            {
                "uuid": "x1",
                "name": "LIVES_IN",
                "fact": "Ana lives in Lyon",
                "group_id": "g1",
                "source_node_uuid": "n1",
                "target_node_uuid": "n2",
                "episodes": ["e1"],
                "created_at": "2025-06-01T00:00:00Z",
                "valid_at": None,
                "invalid_at": "2025-07-01T00:00:00Z",
                "fact_embedding": [0.1, 0.2],
                "attributes": {"sure": 0.9},
            },
            {"uuid": "x2", "source_node_uuid": "e1", "target_node_uuid": "n1", "created_at": "2025-06-01"},
        ],
        "nodes": [
            {"uuid": "n1", "name": "Ana", "labels": ["Entity", "Person"], "summary": "A user who likes tea"},
            {"uuid": "n2", "name": "Lyon", "labels": ["Entity"], "summary": ""},
        ],
    },
    indent=1,
)

APOC = """\
{"type":"node","id":"1","labels":["Episodic"],"properties":{"uuid":"e9","content":"The lift is out"}}
{"type":"relationship","id":"2","label":"RELATES_TO","properties":{"uuid":"x9","fact":"The lift is broken"}}
{"type":"relationship","id":"3","label":"MENTIONS","properties":{"uuid":"x8"},"start":{}}
"""


def memories(rows: list[ForeignRow]) -> list[types_pb2.Memory]:
    return [row.record.memory for row in rows if row.record is not None]


def test_mem0_memories_keep_id_time_user_session_metadata_and_categories() -> None:
    rows = list(read("mem0", MEM0.encode()))
    first, last = memories(rows)
    assert (first.memory_id, first.text, first.session_id, first.speaker) == (
        "3f1c4a52-11aa-4c63-9c8e-0d3b2a1f0001",
        "Likes green tea",
        "r1",
        "Ana",
    )
    assert first.create_time.ToJsonString() == "2025-04-01T17:00:00.123456Z"
    assert list(first.tags) == ["food", "drinks"]
    assert first.kind == types_pb2.MEMORY_KIND_FACT
    assert first.attributes["user_id"].string_value == "ana"
    assert first.attributes["turns"].int_value == 3
    assert first.attributes["nested"].string_value == '{"a": [1]}'
    assert first.attributes["something_new"].bool_value
    assert last.memory_id.startswith("mem0:")
    assert [(row.line, row.error) for row in rows if row.error] == [
        (7, "memory: there is no text"),
        (8, "created_at: is not a time"),
    ]


def test_langgraph_items_find_their_text_in_the_value_and_bad_lines_are_told() -> None:
    rows = list(read("langgraph", LANGGRAPH.encode()))
    first, second, third = memories(rows)
    assert (first.memory_id, first.text) == ("users:ana:k1", "Prefers short answers")
    assert first.attributes["weight"].int_value == 2
    assert first.attributes["namespace"].string_value == "users/ana"
    assert first.update_time.ToJsonString() == "2025-05-02T08:00:00Z"
    assert (second.memory_id, second.text) == ("users:bo:k2", "Has two cats")
    assert second.attributes["kind"].string_value == "Memory"
    assert json.loads(third.text) == {"rules": ["be kind"], "n": 1}
    told = [(row.line, row.error) for row in rows if row.error]
    assert [line for line, _ in told] == [4, 5]
    assert told[0][1].startswith("is not JSON")
    assert told[1][1] == "key: must be a text"


def test_graphiti_episodes_facts_and_entities_become_memories_and_mere_edges_do_not() -> None:
    rows = list(read("graphiti", GRAPHITI.encode()))
    episode, fact, entity = memories(rows)
    assert (episode.memory_id, episode.session_id, episode.kind) == ("e1", "g1", types_pb2.MEMORY_KIND_MESSAGE)
    assert episode.event_time.ToJsonString() == "2025-05-30T00:00:00Z"
    assert (fact.text, list(fact.tags)) == ("Ana lives in Lyon", ["LIVES_IN"])
    assert fact.attributes["invalid_at"].string_value == "2025-07-01T00:00:00Z"
    assert fact.attributes["sure"].double_value == 0.9
    assert "fact_embedding" not in fact.attributes
    assert (entity.text, list(entity.tags)) == ("Ana: A user who likes tea", ["Person"])
    assert not [row for row in rows if row.error]


def test_graphiti_rows_of_a_graph_database_export_are_unpacked() -> None:
    assert [m.text for m in memories(list(read("graphiti", APOC.encode())))] == [
        "The lift is out",
        "The lift is broken",
    ]


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize(
    "data", [b"", b"  \n", b"[]", b"{}", b"\xff\xfe", b'[{"id":', b"[1, 2]", b'"text"', b"[{}", b"nul"]
)
def test_files_that_hold_nothing_usable_are_told_and_never_a_fault(system: str, data: bytes) -> None:
    rows = list(read(system, data))
    assert all(row.error and row.line >= 1 for row in rows)
    assert bool(rows) == bool(data.strip() not in (b"", b"[]"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=8,
)
NAMES = st.sampled_from(
    "id memory metadata created_at key value namespace uuid fact content summary name labels".split()
)


@settings(max_examples=150, deadline=None)
@given(system=st.sampled_from(sorted(SYSTEMS)), rows=st.lists(st.dictionaries(NAMES, JSON, max_size=6), max_size=4))
def test_whatever_the_fields_hold_a_row_is_a_valid_memory_or_a_reason(system: str, rows: list[object]) -> None:
    read_rows: list[ForeignRow] = []
    with suppress(OtherKind):  # the fields may be those of another system
        read_rows = list(read(system, json.dumps(rows).encode()))
    for row in read_rows:
        assert (row.record is None) == bool(row.error)
        if row.record is not None:
            checked = strict_class("clag.v1.MemoryInput").FromString(row.record.memory.SerializeToString())
            found = [
                v for v in violations(checked) if v.field not in ("text", "session_id", "speaker", "event_time")
            ]
            assert not found


HALF = "\ud83d"
BROKEN: dict[str, list[tuple[dict[str, object], str]]] = {
    "mem0": [
        ({"id": "1", "memory": f"tea {HALF}"}, "memory: "),
        ({"id": "1", "memory": "tea", "metadata": {"a": [HALF]}}, "metadata.a[0]: "),
        ({"id": "1", "memory": "tea", HALF: 1}, ""),
    ],
    "langgraph": [
        ({"key": "k", "value": {"content": HALF}}, "value.content: "),
        ({"key": "k", "value": {"text": "tea", "x": HALF}}, "value.x: "),
        ({"key": "k", "value": {"text": "tea", HALF: 1}}, "value: "),
    ],
    "graphiti": [
        ({"uuid": "u", "content": HALF}, "content: "),
        ({"uuid": "u", "fact": "tea", "name": HALF}, "name: "),
        ({"uuid": "u", "fact": "tea", HALF: 1}, ""),
    ],
}
GOOD = {
    "mem0": {"id": "g", "memory": "good"},
    "langgraph": {"key": "g", "value": "good"},
    "graphiti": {"uuid": "g", "content": "good", "group_id": "g"},
}


@pytest.mark.parametrize("system", SYSTEMS)
def test_half_a_character_costs_its_row_only_and_the_field_is_named(system: str) -> None:
    broken = BROKEN[system]
    items = [GOOD[system], *(row for row, _ in broken), GOOD[system]]
    rows = list(read(system, json.dumps(items).encode()))
    assert [m.text for m in memories(rows)] == ["good", "good"]
    assert [(row.item, row.error) for row in rows if row.error] == [
        (item, f"{path}is not well-formed Unicode (a lone surrogate)") for item, (_, path) in enumerate(broken, 2)
    ]


def test_rows_of_a_document_of_one_line_are_numbered_and_others_are_not() -> None:
    items = [{"id": "1", "memory": "tea"}, {"id": "2", "memory": ""}]
    for text, number in ((json.dumps({"results": items}), 2), (json.dumps({"results": items}, indent=1), 0)):
        assert [row.item for row in read("mem0", text.encode()) if row.error] == [number]
    lines = "\n".join(map(json.dumps, items))
    assert [(row.line, row.item) for row in read("mem0", lines.encode()) if row.error] == [(2, 0)]


def test_a_row_that_no_rule_foresaw_is_told_and_costs_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails_once(value: Value) -> pb.ExportRecord | None:
        if value.value["id"] == "2":
            raise ZeroDivisionError("the text of a memory")
        return mem0.record_of(value)

    monkeypatch.setitem(vars(foreign)["SYSTEMS"], "mem0", fails_once)
    rows = list(read("mem0", json.dumps([{"id": str(n), "memory": f"m{n}"} for n in range(4)]).encode()))
    assert [m.text for m in memories(rows)] == ["m0", "m1", "m3"]
    assert [row.error for row in rows if row.error] == ["cannot be read as a memory (ZeroDivisionError)"]


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ('{"memory": ' * 100_000, "is nested too deeply"),
        ('{"memory": "tea", "n": ' + "9" * 5_000 + "}", "holds a number of too many digits"),
    ],
)
def test_lines_that_no_parser_takes_are_told_and_the_others_read(line: str, wrong: str) -> None:
    rows = list(read("mem0", f'{line}\n{{"id": "1", "memory": "good"}}'.encode()))
    assert [(row.line, row.error) for row in rows if row.error] == [(1, wrong)]
    assert [m.text for m in memories(rows)] == ["good"]


@pytest.mark.parametrize(
    ("system", "data", "kind"),
    [
        ("mem0", b"PAR1\x15\x04\x15", "a Parquet file"),
        ("graphiti", b"\x1f\x8b\x08\x00", "a gzip file"),
        ("mem0", GRAPHITI.encode(), "an export of Graphiti"),
        ("langgraph", APOC.encode(), "an export of Graphiti"),
        ("graphiti", MEM0.encode(), "an export of mem0"),
        ("mem0", b'[{"namespace": ["a"], "key": "k", "value": {"content": "x"}}]', "items of a LangGraph store"),
        ("mem0", b'{"namespace": {"namespace": "n"}}\n{"memory": {"text": "x"}}\n', "an export of this program"),
    ],
)
def test_a_file_of_another_kind_is_refused_with_what_it_looks_like(system: str, data: bytes, kind: str) -> None:
    with pytest.raises(OtherKind) as refused:
        list(read(system, data))
    assert refused.value.kind == kind


def test_rows_of_mixed_kinds_are_read_as_they_were_said_to_be() -> None:
    data = b'{"id": "1", "memory": "tea"}\n{"key": "k", "value": "v"}\n'
    assert [m.text for m in memories(list(read("mem0", data)))] == ["tea"]
