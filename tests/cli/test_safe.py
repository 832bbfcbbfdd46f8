"""Nothing that others wrote reaches a terminal as a command."""

from __future__ import annotations

import json

import pytest
from clag.v1 import types_pb2
from hypothesis import given
from hypothesis import strategies as st

from clag_server.cli.messages import as_json
from clag_server.cli.output import print_document, print_lines
from clag_server.cli.safe import is_unsafe, one_line, shorten, visible


@given(st.text())
def test_shown_text_has_nothing_for_a_terminal_to_act_on(text: str) -> None:
    assert not any(map(is_unsafe, visible(text)))
    assert not any(map(is_unsafe, one_line(text)))


def test_escapes_are_shown_and_scripts_and_emoji_stay_readable() -> None:
    assert visible("\x1b]0;title\x07") == "\\x1b]0;title\\x07"
    assert visible("a\u202eb") == "a\\u202eb"
    assert visible("猫 مرحبا 👩‍🔧 [bold]") == "猫 مرحبا 👩‍🔧 [bold]"
    assert visible("a\nb", keep="\n") == "a\nb"
    assert one_line("a\n\t b") == "a b"
    assert shorten("abcdef", 4) == "abc…"


@given(st.text())
def test_json_output_says_the_same_and_is_safe_too(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        written: list[str] = []
        patch.setattr("sys.stdout.write", written.append, raising=False)
        print_lines([{"text": text}])
        print_document({"text": text})
    line, document = written
    assert json.loads(line) == json.loads(document) == {"text": text}
    assert not any(map(is_unsafe, line.rstrip("\n")))
    assert not any(map(is_unsafe, document.replace("\n", "")))


def test_messages_become_plain_json_with_numbers_as_numbers() -> None:
    memory = types_pb2.Memory(
        memory_id="m", access_count=2**53, importance=0.7, state=types_pb2.MEMORY_STATE_EVOLVED
    )
    memory.attributes["n"].int_value = -4
    memory.event_time.FromJsonString("2026-01-01T00:00:00Z")
    shown = as_json(memory)
    assert (shown["access_count"], shown["importance"], shown["state"]) == (2**53, 0.7, "MEMORY_STATE_EVOLVED")
    assert shown["attributes"] == {"n": {"int_value": -4}}
    assert shown["event_time"] == "2026-01-01T00:00:00Z"
    assert "expire_time" not in shown
