"""The small parts of the remote engine: addresses, keys, back-off, plain text, objects in prose."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from clag_server.models.remote_breaker import Backoff
from clag_server.models.remote_config import RemoteConfig, RemoteConfigError, parse_address
from clag_server.models.remote_http import read_api_key
from clag_server.models.remote_link import RemoteLink
from clag_server.models.remote_text import ReasoningFilter, as_plain_text, contained_object, without_reasoning


def test_an_address_without_a_path_means_v1() -> None:
    for url in ("http://127.0.0.1:8000", "http://127.0.0.1:8000/", " http://127.0.0.1:8000/v1/ "):
        address = parse_address(url)
        assert (address.base, address.root) == ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000")
    assert parse_address("https://models.example/llm/v1").root == "https://models.example/llm"


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:8000", "ftp://host", "http://", "http://host:99999", "http://u:secret@host", "http://h/v1?k=1"],
)
def test_an_address_that_cannot_be_used_is_refused_without_showing_a_password(url: str) -> None:
    with pytest.raises(RemoteConfigError) as told:
        parse_address(url)
    assert "secret" not in str(told.value)


@pytest.mark.parametrize(
    ("url", "clear"),
    [
        ("http://localhost:1", False),
        ("http://127.9.9.9:1", False),
        ("http://[::1]:1", False),
        ("https://models.example", False),
        ("http://models.example", True),
        ("http://10.0.0.7:8000", True),
    ],
)
async def test_plain_http_is_warned_of_once_when_it_leaves_the_machine(url: str, clear: bool) -> None:
    assert parse_address(url).clear_text is clear
    with structlog.testing.capture_logs() as logs:
        link = RemoteLink(RemoteConfig(url, "tiny"))
        link.start()
        await link.stop()
    assert [one["log_level"] for one in logs if "unencrypted" in one["event"]] == ["warning"] * clear


@pytest.mark.parametrize("content", [b"", b" \n", b"two words", b"k\xc3\xa9y", b"\xff\xfe", b"a\r\nb: c"])
def test_a_key_that_no_header_can_carry_is_refused_at_the_start(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(RemoteConfigError, match=r"models\.slm_api_key_file"):
        RemoteLink(RemoteConfig("http://127.0.0.1:1", "tiny", api_key_file=path))


def test_a_key_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(RemoteConfigError, match=r"cannot read .*nowhere"):
        read_api_key(RemoteConfig("http://127.0.0.1:1", "tiny", api_key_file=tmp_path / "nowhere"))


@given(st.integers(1, 10_000), st.floats(0, 3600))
def test_a_wait_is_never_shorter_than_asked_nor_longer_than_the_cap_on_top(failures: int, asked_s: float) -> None:
    wait_s = Backoff(0.25, 8.0).wait_s(failures, asked_s)
    assert asked_s <= wait_s <= asked_s + min(0.25 * 2.0 ** min(failures - 1, 20), 8.0)


@pytest.mark.parametrize(
    "token",
    ["<|im_start|>", "<|endoftext|>", "</s>", "<s>", "<start_of_turn>", "<｜User｜>", "[INST]", "[/INST]",
     "<<SYS>>", "<</SYS>>", "<unused7>", "<|eot_id|>", "<pad>", "[TOOL_CALLS]", "<think>"],
)  # fmt: skip
def test_no_control_token_survives_however_often_it_is_repeated(token: str) -> None:
    for text in (token, f"a{token}b", token * 3, f"<{token}", token[0] + token):
        assert token not in as_plain_text(text)


@pytest.mark.parametrize(
    "text", ["a < b and c > d", "if x<3: y>4", "[x] [1] list[INT]", "<-- here", "猫は<屋根>", ""]
)
def test_ordinary_text_is_hardly_touched(text: str) -> None:
    assert as_plain_text(text).replace(" ", "") == text.replace(" ", "")


@given(st.text(), st.text())
def test_breaking_control_tokens_only_adds_spaces(before: str, after: str) -> None:
    text = f"{before}<|im_end|>{after}"
    assert as_plain_text(text).replace(" ", "") == text.replace(" ", "")


@given(
    st.text(alphabet=st.characters(exclude_characters="{}")),
    st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.text(max_size=5), st.none()), max_size=4),
    st.text(),
)
def test_the_first_whole_object_is_found_in_any_prose(before: str, value: dict[str, object], after: str) -> None:
    found = contained_object(before + json.dumps(value) + after)
    assert found is not None
    assert json.loads(found) == value


@pytest.mark.parametrize("text", ["", "{" * 100_000, "[1, 2]", '{"a": ', "}{", '{"a":' * 50_000])
def test_a_text_without_a_whole_object_has_none(text: str) -> None:
    assert contained_object(text) is None


@given(st.lists(st.sampled_from(["<th", "ink>", "why", "</think>", "\n", "because", " ", "<"]), max_size=12))
def test_a_streamed_text_loses_the_same_reasoning_as_a_whole_one(pieces: list[str]) -> None:
    shown = ReasoningFilter()
    streamed = "".join(shown.feed(piece) for piece in pieces) + shown.rest()
    assert streamed.strip() == without_reasoning("".join(pieces)).strip()
