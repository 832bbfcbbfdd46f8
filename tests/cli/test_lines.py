"""Lines of JSON become memories, or say what is wrong with them."""

from __future__ import annotations

import io
import json

import pytest
from clag.v1 import types_pb2
from hypothesis import given
from hypothesis import strategies as st

from clag_server.cli.lines import MAX_LINE_BYTES, BadLine, Line, parse_line, read_lines


def parsed(raw: str | bytes) -> types_pb2.MemoryInput:
    return parse_line(Line(1, 1, raw.encode() if isinstance(raw, str) else raw))


def test_every_key_of_the_documented_form_arrives_in_its_field() -> None:
    item = parsed(
        json.dumps(
            {
                "id": "r1",
                "text": "猫は屋根にいる",
                "speaker": "Anna",
                "session": "s1",
                "time": "2026-03-02T06:02:00+01:00",
                "kind": "tool_output",
                "task": "charging",
                "importance": 0.5,
                "tags": ["a", "b"],
                "attributes": {"soc": 100, "volts": 50.5, "ok": True, "place": "C2", "who": ["x", "y"], "none": []},
                "supersedes": "r0",
                "expires": "2027-01-01T00:00:00Z",
            }
        )
    )
    assert (item.memory_id, item.text, item.speaker, item.session_id) == ("r1", "猫は屋根にいる", "Anna", "s1")
    assert item.event_time.ToJsonString() == "2026-03-02T05:02:00Z"
    assert item.expire_time.ToJsonString() == "2027-01-01T00:00:00Z"
    assert (item.kind, item.task) == (types_pb2.MEMORY_KIND_TOOL_OUTPUT, "charging")
    assert (item.importance, list(item.tags), list(item.supersedes)) == (0.5, ["a", "b"], ["r0"])
    kinds = {key: value.WhichOneof("value") for key, value in item.attributes.items()}
    assert kinds == {
        "soc": "int_value",
        "volts": "double_value",
        "ok": "bool_value",
        "place": "string_value",
        "who": "string_list",
        "none": "string_list",
    }


def test_a_time_without_an_offset_is_utc() -> None:
    item = parsed('{"text": "x", "time": "2026-03-02 06:02:00"}')
    assert item.event_time.ToJsonString() == "2026-03-02T06:02:00Z"


@pytest.mark.parametrize(
    ("raw", "field", "says"),
    [
        ("nonsense", "", "not JSON"),
        ("[1]", "", "not a JSON object"),
        ('{"text": "a", "text": "b"}', "text", "twice"),
        ('{"txt": "a"}', "txt", "unknown key"),
        ('{"speaker": "a"}', "text", "missing"),
        ('{"text": ""}', "text", "missing or empty"),
        ('{"text": 1}', "text", "string"),
        ('{"text": "arm \\ud83d stuck"}', "text", "surrogate"),
        ('{"text": "a", "tags": "b"}', "tags", "list of strings"),
        ('{"text": "a", "tags": [1]}', "tags[0]", "string"),
        ('{"text": "a", "kind": "dream"}', "kind", "observation"),
        ('{"text": "a", "time": "31 Feb"}', "time", "2026-03-02T06:02:00Z"),
        ('{"text": "a", "time": "2026-02-31T00:00:00Z"}', "time", "must be a time"),
        ('{"text": "a", "importance": true}', "importance", "number"),
        ('{"text": "a", "importance": 1.5}', "importance", "from 0 to 1"),
        ('{"text": "a", "importance": NaN}', "", "NaN"),
        ('{"text": "a", "attributes": {"n": 9223372036854775808}}', 'attributes["n"]', "64 bits"),
        ('{"text": "a", "attributes": {"n": {}}}', 'attributes["n"]', "string, a number"),
        ('{"text": "a", "attributes": []}', "attributes", "object"),
        (b'{"text": "\xff"}', "", "UTF-8 at byte 11"),
        ("[" * 100_000, "", "nested too deeply"),
        ('{"text": "a", "attributes": {"n": ' + "1" * 5000 + "}}", "", "JSON"),
    ],
)
def test_a_bad_line_names_the_key_and_the_fault(raw: str | bytes, field: str, says: str) -> None:
    with pytest.raises(BadLine) as caught:
        parsed(raw)
    assert caught.value.field == field
    assert says in caught.value.reason or says in str(caught.value)


def test_blank_lines_have_line_numbers_but_no_sequence_numbers() -> None:
    lines = list(read_lines(io.BytesIO(b'\xef\xbb\xbf{"text": "a"}\r\n\n  \n{"text": "b"}')))
    assert [(line.number, line.seq) for line in lines] == [(1, 1), (4, 2)]
    assert [parse_line(line).text for line in lines] == ["a", "b"]


def test_a_line_without_end_costs_one_item_and_no_memory() -> None:
    endless = b"x" * (3 * MAX_LINE_BYTES) + b"\n" + b'{"text": "after"}\n'
    first, second = read_lines(io.BytesIO(endless))
    with pytest.raises(BadLine, match="longer than"):
        parse_line(first)
    assert (second.number, parse_line(second).text) == (2, "after")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_memory_or_a_bad_line(raw: bytes) -> None:
    for line in read_lines(io.BytesIO(raw)):
        assert _text_or_reason(line)


def _text_or_reason(line: Line) -> str:
    try:
        return parse_line(line).text
    except BadLine as bad:
        return bad.reason
