"""ListMemoryHistory: what happened to a memory, newest first, page by page."""

from __future__ import annotations

import json

import grpc
import pytest
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from google.protobuf.field_mask_pb2 import FieldMask

from tests.support.ingest import store
from tests.support.process import Stubs
from tests.support.status import read


def history(stubs: Stubs, namespace: str, memory_id: str, page_size: int = 0) -> list[pb.MemoryHistoryEntry]:
    """All entries, over all pages."""
    found: list[pb.MemoryHistoryEntry] = []
    request = pb.ListMemoryHistoryRequest(namespace=namespace, memory_id=memory_id, page_size=page_size)
    while True:
        page = stubs.memory.ListMemoryHistory(request, timeout=20)
        assert not page_size or len(page.entries) <= page_size
        found.extend(page.entries)
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


def test_a_history_tells_what_changed_and_why_in_the_same_words_on_pages_of_any_size(
    stubs: Stubs, namespace: str
) -> None:
    item = types_pb2.MemoryInput(memory_id="m", text="the dock is in bay 3")
    store(stubs, namespace, [item], level=pb.ACK_LEVEL_ORGANIZED)
    for task in ("loading", "unloading", "resting"):
        stubs.memory.UpdateMemory(
            pb.UpdateMemoryRequest(
                namespace=namespace,
                memory_id="m",
                memory=types_pb2.MemoryInput(task=task),
                update_mask=FieldMask(paths=["task"]),
            ),
            timeout=20,
        )
    newer = types_pb2.MemoryInput(memory_id="n", text="the dock moved to bay 7", supersedes=["m"])
    store(stubs, namespace, [newer], stream_id="later", level=pb.ACK_LEVEL_DURABLE)
    whole = history(stubs, namespace, "m")
    times = [(entry.time.seconds, entry.time.nanos) for entry in whole]
    assert times == sorted(times, reverse=True)
    assert whole[-1].cause == pb.HISTORY_CAUSE_CLIENT
    conflict = next(entry for entry in whole if entry.cause == pb.HISTORY_CAUSE_CONFLICT)
    assert conflict.cause_memory_id == "n"
    assert [(c.field, c.new_value) for c in conflict.changes] == [("superseded_by", '"n"')]
    tasks = [c for entry in whole for c in entry.changes if c.field == "task"]
    values = [(json.loads(c.old_value or '""'), json.loads(c.new_value)) for c in tasks]
    assert values == [("unloading", "resting"), ("loading", "unloading"), ("", "loading")]
    for size in (1, 2, 3):
        assert history(stubs, namespace, "m", page_size=size) == whole


def test_a_history_of_what_is_not_there_is_not_found_and_goes_with_its_memory(stubs: Stubs, namespace: str) -> None:
    store(stubs, namespace, [types_pb2.MemoryInput(memory_id="m", text="gone soon")])
    stubs.memory.DeleteMemory(pb.DeleteMemoryRequest(namespace=namespace, memory_id="m"), timeout=20)
    for name in ("m", "never"):
        with pytest.raises(grpc.RpcError) as told:
            history(stubs, namespace, name)
        assert read(told.value).code is grpc.StatusCode.NOT_FOUND


def test_a_page_token_of_another_memory_is_refused(stubs: Stubs, namespace: str) -> None:
    items = [types_pb2.MemoryInput(memory_id=name, text=f"the text of {name}") for name in ("a", "b")]
    store(stubs, namespace, items, level=pb.ACK_LEVEL_ORGANIZED)
    request = pb.ListMemoryHistoryRequest(namespace=namespace, memory_id="a", page_size=1)
    token = stubs.memory.ListMemoryHistory(request, timeout=20).next_page_token
    assert token
    with pytest.raises(grpc.RpcError) as told:
        stubs.memory.ListMemoryHistory(
            pb.ListMemoryHistoryRequest(namespace=namespace, memory_id="b", page_token=token), timeout=20
        )
    assert read(told.value).reason == "PAGE_TOKEN_MISMATCH"
