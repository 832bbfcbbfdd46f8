"""Decoding: nothing is lost on the way through, nothing raises, bad text is named."""

from __future__ import annotations

from typing import Any

import pytest
from clag.v1 import admin_service_pb2, cluster_service_pb2, memory_service_pb2, types_pb2
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from clag_server.contract.decode import Malformed, Repaired, decoder
from clag_server.contract.pool import strict_class
from tests.contract.strategies import memory_inputs, messages

MARK = b"@@@"  # stands in a text until it is replaced by bytes of the same length
LONE_SURROGATE = b"\xed\xa0\xbd"  # U+D83D as a lenient client sends it


def client_class(full_name: str) -> type[Message]:
    name = full_name.removeprefix("clag.v1.")
    for module in (memory_service_pb2, cluster_service_pb2, admin_service_pb2, types_pb2):
        if hasattr(module, name):
            found: type[Message] = getattr(module, name)
            return found
    raise KeyError(full_name)


@pytest.mark.parametrize(
    "full_name",
    [
        "clag.v1.Memory",
        "clag.v1.IngestRequest",
        "clag.v1.RetrieveRequest",
        "clag.v1.UpdateClusterRequest",
        "clag.v1.ImportRequest",
        "clag.v1.GetStatsResponse",
    ],
)
@settings(max_examples=40)
@given(data=st.data())
def test_client_and_server_read_the_same_from_the_same_bytes(full_name: str, data: st.DataObject) -> None:
    sent = data.draw(messages(full_name))
    read = client_class(full_name).FromString(sent.SerializeToString(deterministic=True))
    assert read.SerializeToString(deterministic=True) == sent.SerializeToString(deterministic=True)
    again = decoder(full_name)(read.SerializeToString())
    assert again == sent


@given(st.binary(max_size=200))
def test_no_bytes_make_the_decoder_raise(data: bytes) -> None:
    for full_name in ("clag.v1.IngestRequest", "clag.v1.UpdateMemoryRequest"):
        decoded = decoder(full_name, repair=True)(data)
        assert isinstance(decoded, strict_class(full_name) | Malformed | Repaired)


@given(st.lists(memory_inputs(), min_size=1, max_size=6), st.data())
def test_items_with_ill_formed_text_are_blanked_and_the_others_untouched(
    items: list[types_pb2.MemoryInput], data: st.DataObject
) -> None:
    bad = data.draw(st.sets(st.integers(0, len(items) - 1), min_size=1))
    for index in bad:
        items[index].tags.append(MARK.decode())
    batch = memory_service_pb2.IngestBatch(first_seq=7, items=items)
    frame = memory_service_pb2.IngestRequest(batch=batch).SerializeToString()
    decoded = decoder("clag.v1.IngestRequest", repair=True)(_spoiled(frame, items, bad))
    assert isinstance(decoded, Repaired)
    assert set(decoded.blanked) == bad
    read = memory_service_pb2.IngestRequest.FromString(decoded.message.SerializeToString())
    assert read.batch.first_seq == 7
    for index, item in enumerate(items):
        if index in bad:
            assert read.batch.items[index] == types_pb2.MemoryInput()
            assert decoded.blanked[index][0].field == f"tags[{len(item.tags) - 1}]"
        else:
            assert read.batch.items[index] == item


def _spoiled(frame: bytes, items: list[types_pb2.MemoryInput], bad: set[int]) -> bytes:
    """Replace the mark in the last tag of the bad items only, whatever else the texts hold."""
    for index in bad:
        item = items[index]
        whole = item.SerializeToString()
        position = whole.rindex(b"\x3a\x03" + MARK)  # field 7, length 3
        spoiled = whole[: position + 2] + LONE_SURROGATE + whole[position + 5 :]
        frame = frame.replace(whole, spoiled, 1)
    return frame


def _surrogate_in(full_name: str, **fields: Any) -> bytes:
    """Bytes of a message in whose fields the mark became a lone surrogate."""
    return client_class(full_name)(**fields).SerializeToString().replace(MARK, LONE_SURROGATE)


@pytest.mark.parametrize(
    ("full_name", "fields", "path"),
    [
        ("clag.v1.RetrieveRequest", {"namespace": "a", "query": {"text": "arm @@@ stuck"}}, "query.text"),
        ("clag.v1.GetMemoryRequest", {"namespace": "a", "memory_id": "@@@"}, "memory_id"),
        ("clag.v1.CreateMemoryRequest", {"memory": {"text": "a", "tags": ["ok", "@@@"]}}, "memory.tags[1]"),
        ("clag.v1.UpdateMemoryRequest", {"update_mask": {"paths": ["text", "@@@"]}}, "update_mask.paths[1]"),
        ("clag.v1.UpdateMemoryRequest", {"memory": {"speaker": "@@@"}}, "memory.speaker"),
    ],
)
def test_a_lone_surrogate_in_a_request_is_named(full_name: str, fields: dict[str, Any], path: str) -> None:
    decoded = decoder(full_name)(_surrogate_in(full_name, **fields))
    assert isinstance(decoded, Malformed)
    assert [found.field for found in decoded.violations] == [path]
    assert "UTF-8" in decoded.violations[0].description


def test_a_lone_surrogate_in_a_map_is_named_by_key_and_as_key() -> None:
    item = types_pb2.MemoryInput(text="a")
    item.attributes["fine"].string_value = "@@@"
    spoiled = item.SerializeToString().replace(MARK, LONE_SURROGATE)
    decoded = decoder("clag.v1.MemoryInput")(spoiled)
    assert isinstance(decoded, Malformed)
    assert decoded.violations[0].field == 'attributes["fine"].string_value'
    keyed = types_pb2.MemoryInput(text="a")
    keyed.attributes["k@@@"].bool_value = True
    decoded = decoder("clag.v1.MemoryInput")(keyed.SerializeToString().replace(MARK, LONE_SURROGATE))
    assert isinstance(decoded, Malformed)
    assert decoded.violations[0].field.startswith('attributes["k')


def test_a_frame_that_is_wrong_outside_its_items_is_malformed_as_a_whole() -> None:
    frame = _surrogate_in("clag.v1.IngestRequest", open={"namespace": "a", "stream_id": "@@@"})
    decoded = decoder("clag.v1.IngestRequest", repair=True)(frame)
    assert isinstance(decoded, Malformed)
    assert decoded.violations[0].field == "open.stream_id"


def test_bytes_that_are_no_message_are_said_to_be_none() -> None:
    decoded = decoder("clag.v1.GetMemoryRequest")(b"\xff\xff\xff")
    assert isinstance(decoded, Malformed)
    assert decoded.violations[0].field == ""


def test_client_code_is_free_of_the_rules() -> None:
    for module in (types_pb2, memory_service_pb2, cluster_service_pb2, admin_service_pb2):
        assert not [file.name for file in module.DESCRIPTOR.dependencies if file.name.startswith("buf/")]
        assert b"buf.validate" not in module.DESCRIPTOR.serialized_pb
