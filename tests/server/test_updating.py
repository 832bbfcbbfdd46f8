"""UpdateMemory: masks, rules, etags and retries, over the socket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc
import pytest
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from tests.support.ingest import IngestStream, store
from tests.support.process import Stubs
from tests.support.reads import ask, get
from tests.support.status import read

DAY = Timestamp(seconds=1_700_000_000)


def given(**fields: object) -> types_pb2.MemoryInput:
    values: dict[str, object] = {
        "memory_id": "m",
        "text": "the red crate stands at the dock",
        "tags": ["crate"],
        "session_id": "s",
        "event_time": DAY,
        "attributes": {
            "shelf": types_pb2.AttributeValue(string_value="B3"),
            "dots.in.it": types_pb2.AttributeValue(int_value=1),
        },
    }
    return types_pb2.MemoryInput(**{**values, **fields})  # type: ignore[arg-type]


def update(
    stubs: Stubs, namespace: str, paths: list[str], *, etag: str = "", request_id: str = "", **fields: object
) -> pb.UpdateMemoryResponse:
    request = pb.UpdateMemoryRequest(
        namespace=namespace,
        memory_id="m",
        memory=types_pb2.MemoryInput(**fields),  # type: ignore[arg-type]
        update_mask=FieldMask(paths=paths),
        etag=etag,
        request_id=request_id,
    )
    return stubs.memory.UpdateMemory(request, timeout=30)


def refused(stubs: Stubs, namespace: str, paths: list[str], **fields: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as raised:
        update(stubs, namespace, paths, **fields)
    return raised.value


def lexical(hit: pb.MemoryHit) -> float:
    return sum(part.value for part in hit.score_parts if part.name == "lexical")


def shown(attributes: Mapping[str, types_pb2.AttributeValue]) -> dict[str, object]:
    return {key: getattr(value, str(value.WhichOneof("value"))) for key, value in attributes.items()}


def test_new_words_leave_attributes_tags_and_times_alone_and_replace_the_old_in_every_search(
    stubs: Stubs, namespace: str
) -> None:
    store(stubs, namespace, [given(), types_pb2.MemoryInput(text="the dock opens at seven", session_id="s")])
    before = get(stubs, namespace, "m")
    answer = update(stubs, namespace, ["text"], text="the blue crate stands at the dock", tags=["ignored"])
    after = answer.memory
    assert after.text == "the blue crate stands at the dock"
    assert list(after.tags) == ["crate"]
    assert after.event_time == before.event_time
    assert after.create_time == before.create_time
    assert shown(after.attributes) == shown(before.attributes)
    assert after.etag != before.etag
    assert all(hit.memory.text != before.text for hit in ask(stubs, namespace, "red"))
    assert all(lexical(hit) == 0 for hit in ask(stubs, namespace, "red", explain=True))
    assert ask(stubs, namespace, "blue crate")[0].memory.memory_id == "m"


def test_a_field_in_the_mask_that_is_not_set_is_cleared(stubs: Stubs, namespace: str) -> None:
    store(stubs, namespace, [given(importance=0.9, expire_time=Timestamp(seconds=4_000_000_000))])
    after = update(stubs, namespace, ["tags", "importance", "expire_time"]).memory
    assert list(after.tags) == []
    assert after.importance == 0.5
    assert not after.HasField("expire_time")
    assert after.text == "the red crate stands at the dock"


def test_a_cleared_event_time_is_that_of_arrival(stubs: Stubs, namespace: str) -> None:
    store(stubs, namespace, [given()])
    after = update(stubs, namespace, ["event_time"]).memory
    assert after.event_time == after.create_time


def test_single_attributes_change_by_their_keys(stubs: Stubs, namespace: str) -> None:
    store(stubs, namespace, [given()])
    new = {
        "dots.in.it": types_pb2.AttributeValue(int_value=2),
        "other": types_pb2.AttributeValue(bool_value=True),
    }
    after = update(stubs, namespace, ["attributes.dots.in.it", "attributes.shelf"], attributes=new).memory
    assert shown(after.attributes) == {"dots.in.it": 2}


@pytest.mark.parametrize(
    ("path", "told"),
    [("memory_id", "cannot change"), ("texts", "no field"), ("attributes.", "no field"), ("state", "no field")],
)
def test_a_path_that_cannot_change_is_named(stubs: Stubs, namespace: str, path: str, told: str) -> None:
    store(stubs, namespace, [given()])
    error = refused(stubs, namespace, ["text", path], text="new")
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert read(error).fields == ("update_mask.paths[1]",)
    assert told in read(error).message
    assert get(stubs, namespace, "m").text == "the red crate stands at the dock"


def test_an_empty_mask_changes_nothing_and_says_so(stubs: Stubs, namespace: str) -> None:
    store(stubs, namespace, [given()])
    assert refused(stubs, namespace, []).code() is grpc.StatusCode.INVALID_ARGUMENT


def test_the_memory_as_it_would_be_is_held_to_the_rules(stubs: Stubs, namespace: str) -> None:
    store(stubs, namespace, [given()])
    empty = refused(stubs, namespace, ["text"])
    assert read(empty).fields == ("memory.text",)
    tagged = refused(stubs, namespace, ["tags"], tags=["fine", ""])
    assert read(tagged).fields == ("memory.tags[1]",)
    shaped = refused(stubs, namespace, ["embedding"], embedding=[1.0, 2.0])
    assert read(shaped).reason == "EMBEDDING_SHAPE"
    # What is outside the mask is ignored, however wrong it is.
    assert update(stubs, namespace, ["task"], task="new", tags=[""]).memory.task == "new"


def test_a_memory_that_supersedes_itself_is_refused_however_it_comes(stubs: Stubs, namespace: str) -> None:
    store(stubs, namespace, [given()])
    assert read(refused(stubs, namespace, ["supersedes"], supersedes=["x", "m"])).fields == ("memory.supersedes",)
    itself = types_pb2.MemoryInput(memory_id="n", text="new", supersedes=["n"])
    with pytest.raises(grpc.RpcError) as raised:
        stubs.memory.CreateMemory(pb.CreateMemoryRequest(namespace=namespace, memory=itself), timeout=30)
    assert read(raised.value).fields == ("memory.supersedes",)
    with IngestStream(stubs, namespace) as stream:
        stream.batch([itself])
        (result,) = stream.acked(1).results
        assert (result.disposition, result.error.field) == (pb.DISPOSITION_REJECTED, "supersedes")
        assert stream.finish().rejected == 1


def test_superseding_a_memory_that_is_not_there_has_no_effect_even_when_it_comes(
    stubs: Stubs, namespace: str
) -> None:
    store(stubs, namespace, [given()])
    assert update(stubs, namespace, ["supersedes"], supersedes=["later"]).memory.supersedes == ["later"]
    store(stubs, namespace, [types_pb2.MemoryInput(memory_id="later", text="the crate is green")])
    assert get(stubs, namespace, "later").superseded_by == ""


def test_an_older_etag_is_refused_with_the_current_one(stubs: Stubs, namespace: str) -> None:
    store(stubs, namespace, [given()], level=pb.ACK_LEVEL_ORGANIZED)
    current = get(stubs, namespace, "m").etag
    assert update(stubs, namespace, ["task"], etag=current, task="one").memory.task == "one"
    error = refused(stubs, namespace, ["task"], etag=current, task="two")
    assert error.code() is grpc.StatusCode.ABORTED
    assert read(error).reason == "ETAG_MISMATCH"


def test_a_retried_update_is_answered_once_more(stubs: Stubs, namespace: str) -> None:
    store(stubs, namespace, [given()], level=pb.ACK_LEVEL_ORGANIZED)
    etag = get(stubs, namespace, "m").etag
    first = update(stubs, namespace, ["task"], etag=etag, request_id="r", task="one")
    again = update(stubs, namespace, ["task"], etag=etag, request_id="r", task="one")
    assert again.revision == first.revision
    error = refused(stubs, namespace, ["task"], request_id="r", task="two")
    assert read(error).reason == "REQUEST_ID_REUSED"


def test_a_missing_memory_or_namespace_is_not_found(stubs: Stubs, namespace: str) -> None:
    assert refused(stubs, namespace, ["text"], text="new").code() is grpc.StatusCode.NOT_FOUND
    store(stubs, namespace, [types_pb2.MemoryInput(text="another")])
    assert refused(stubs, namespace, ["text"], text="new").code() is grpc.StatusCode.NOT_FOUND


def test_tags_and_tasks_are_found_by_their_new_words(stubs: Stubs, namespace: str) -> None:
    store(stubs, namespace, [given()])
    update(stubs, namespace, ["tags", "task"], tags=["submarine"], task="periscope duty")
    for word in ("submarine", "periscope"):
        assert lexical(ask(stubs, namespace, word, explain=True)[0]) > 0
