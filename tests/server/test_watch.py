"""Watch: changes once and in order, resumed anywhere, at any reader's pace; what ends a watch says why."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from typing import Any

import grpc
import psutil
import pytest
from clag.v1 import admin_service_pb2 as admin_pb
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from clag_client import AsyncClient, NewMemory

from tests.conftest import ServerMaker
from tests.support.ingest import store, texts
from tests.support.process import Stubs
from tests.support.status import read

TIMEOUT_S = 60.0
CREATED = pb.CHANGE_KIND_MEMORY_CREATED
DELETED = pb.CHANGE_KIND_MEMORY_DELETED


@contextmanager
def watching(stubs: Stubs, namespace: str, **fields: Any) -> Iterator[Any]:
    call = stubs.memory.Watch(pb.WatchRequest(namespace=namespace, **fields), timeout=TIMEOUT_S)
    try:
        yield call
    finally:
        call.cancel()


def until(call: Iterator[pb.WatchResponse], count: int) -> list[pb.WatchResponse]:
    """Read until so many changes have come; checkpoints are left out."""
    found: list[pb.WatchResponse] = []
    while sum(len(response.changes) for response in found) < count:
        response = next(call)
        if response.changes:
            found.append(response)
    return found


def test_the_first_response_is_a_checkpoint_and_a_watch_from_it_misses_nothing(
    stubs: Stubs, namespace: str
) -> None:
    store(stubs, namespace, texts("before"))
    with watching(stubs, namespace, kinds=[CREATED]) as call:
        first = next(call)
    assert (first.checkpoint, list(first.changes)) == (True, [])
    ids = [result.memory_id for result in store(stubs, namespace, texts("one", "two"), stream_id="more")]
    with watching(stubs, namespace, kinds=[CREATED], start_after=first.through) as call:
        assert next(call).checkpoint
        seen = until(call, 2)
    assert [change.memory_id for response in seen for change in response.changes] == ids
    assert all(len({r.through.token for r in seen}) == len(seen) for _ in seen)


def test_a_watch_resumed_after_each_response_sees_each_change_once_and_in_order(
    stubs: Stubs, namespace: str
) -> None:
    with watching(stubs, _made(stubs, namespace)) as call:
        after = next(call).through
    store(stubs, namespace, texts(*(f"note {n}" for n in range(5))), level=pb.ACK_LEVEL_ORGANIZED)
    with watching(stubs, namespace, start_after=after) as call:
        next(call)
        whole = until(call, 10)
    pieces = []
    for _ in whole:
        with watching(stubs, namespace, start_after=after) as call:
            next(call)
            (response,) = until(call, 1)
        pieces.append(response)
        after = response.through
    assert pieces == whole


def test_changes_carry_values_as_they_are_when_sent_and_only_where_asked(stubs: Stubs, namespace: str) -> None:
    with watching(stubs, _made(stubs, namespace)) as call:
        after = next(call).through
    results = store(
        stubs, namespace, texts("the dock is in bay 3", "the lift is broken"), level=pb.ACK_LEVEL_ORGANIZED
    )
    gone = results[0].memory_id
    stubs.memory.DeleteMemory(pb.DeleteMemoryRequest(namespace=namespace, memory_id=gone))
    with watching(stubs, namespace, start_after=after, kinds=[CREATED, DELETED], include_values=True) as call:
        next(call)
        changes = [change for response in until(call, 3) for change in response.changes]
    assert [(c.kind, c.memory_id == gone, c.HasField("memory")) for c in changes] == [
        (CREATED, True, False),
        (CREATED, False, True),
        (DELETED, True, False),
    ]
    assert changes[1].memory.text == "the lift is broken"
    assert changes[1].memory.state == types_pb2.MEMORY_STATE_EVOLVED
    with watching(
        stubs, namespace, start_after=after, kinds=[pb.CHANGE_KIND_CLUSTER_CREATED], include_values=True
    ) as c:
        next(c)
        (founded,) = until(c, 1)[:1]
    assert founded.changes[0].cluster_id.startswith("c")


def test_an_open_watch_hears_of_a_write_of_its_namespace_and_of_no_other(stubs: Stubs, namespace: str) -> None:
    other = _made(stubs, f"{namespace}-b")
    heard: queue.Queue[pb.WatchResponse] = queue.Queue()
    with watching(stubs, _made(stubs, namespace), kinds=[CREATED]) as call:
        next(call)

        def listen() -> None:
            try:
                for response in call:
                    heard.put(response)
            except grpc.RpcError:
                return  # the test is over

        thread = threading.Thread(target=listen)
        thread.start()
        store(stubs, other, texts("not mine"), stream_id="x")
        (mine,) = store(stubs, namespace, texts("mine"), stream_id="x")
        while True:
            response = heard.get(timeout=TIMEOUT_S)
            if response.changes:
                break
        call.cancel()
        thread.join(TIMEOUT_S)
    assert [change.memory_id for change in response.changes] == [mine.memory_id]


def test_a_quiet_watch_gets_checkpoints_that_move_on(make_server: ServerMaker) -> None:
    stubs = make_server(storage__watch_checkpoint_s="0.05").start().connect()
    with watching(stubs, _made(stubs, "quiet"), kinds=[DELETED]) as call:
        first = next(call)
        store(stubs, "quiet", texts("something that was not asked for"), stream_id="x")
        checkpoints = [next(call) for _ in range(5)]
        while checkpoints[-1].through == first.through:
            checkpoints.append(next(call))
    assert all(response.checkpoint and not response.changes for response in checkpoints)


def test_revisions_that_are_not_of_this_namespace_or_in_the_future_are_refused(
    stubs: Stubs, namespace: str
) -> None:
    with watching(stubs, _made(stubs, f"{namespace}-b")) as call:
        foreign = next(call).through
    for wrong in (foreign, types_pb2.Revision(token="nonsense")):
        with (
            watching(stubs, _made(stubs, namespace), start_after=wrong) as call,
            pytest.raises(grpc.RpcError) as told,
        ):
            next(call)
        status = read(told.value)
        assert (status.code, status.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
        assert status.fields == ("start_after.token",)


def test_a_watch_of_what_does_not_exist_is_not_found(stubs: Stubs) -> None:
    with watching(stubs, "nothing-here") as call, pytest.raises(grpc.RpcError) as told:
        next(call)
    assert (read(told.value).code, read(told.value).reason) == (grpc.StatusCode.NOT_FOUND, "NOT_FOUND")


def test_a_compacted_log_says_how_far_it_reaches_and_that_revision_works(make_server: ServerMaker) -> None:
    server = make_server(storage__changes_keep="0", storage__changes_keep_days="0")
    stubs = server.start().connect()
    with watching(stubs, _made(stubs, "old")) as call:
        after = next(call).through
    store(stubs, "old", texts(*(f"note {n}" for n in range(20))), level=pb.ACK_LEVEL_ORGANIZED)
    server.terminate()  # at the next start everything is older than the settings keep
    stubs = server.start().connect()
    status = _refused(stubs, after)
    assert (status.code, status.reason) == (grpc.StatusCode.OUT_OF_RANGE, "WATCH_COMPACTED")
    oldest = types_pb2.Revision(token=status.facts["oldest_revision"])
    with watching(stubs, "old", start_after=oldest) as call:
        assert next(call).checkpoint


def _refused(stubs: Stubs, after: types_pb2.Revision) -> Any:
    """Ask until the log is compacted; it is soon after the start."""
    while True:
        with watching(stubs, "old", start_after=after) as call:
            try:
                next(call)
                next(call)
            except grpc.RpcError as error:
                return read(error)


def test_a_server_that_drains_ends_watches_with_a_hint_to_come_again(make_server: ServerMaker) -> None:
    server = make_server().start()
    stubs = server.connect()
    with watching(stubs, _made(stubs, "open")) as call:
        next(call)
        assert server.terminate() == 0
        with pytest.raises(grpc.RpcError) as told:
            list(call)
    status = read(told.value)
    assert (status.code, status.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    assert status.retry_after_s


def test_a_deleted_namespace_ends_its_watches(make_server: ServerMaker) -> None:
    stubs = make_server().start().connect()
    with watching(stubs, _made(stubs, "goes")) as call:
        next(call)
        stubs.admin.DeleteNamespace(admin_pb.DeleteNamespaceRequest(namespace="goes"))
        with pytest.raises(grpc.RpcError) as told:
            list(call)
    status = read(told.value)
    assert (status.code, status.reason) == (grpc.StatusCode.NOT_FOUND, "NAMESPACE_DELETED")


def test_readers_that_do_not_read_cost_no_memory(make_server: ServerMaker) -> None:
    server = make_server().start()
    stubs = server.connect()
    long = "x" * 8_000
    with watching(stubs, _made(stubs, "slow")) as call:
        after = next(call).through
    store(stubs, "slow", texts(*(f"{n} {long}" for n in range(300))), level=pb.ACK_LEVEL_DURABLE)
    process = psutil.Process(server.pid)
    stuck = [
        stubs.memory.Watch(
            pb.WatchRequest(namespace="slow", start_after=after, include_values=True), timeout=TIMEOUT_S
        )
        for _ in range(30)
    ]
    for call in stuck:
        next(call)  # the checkpoint; nothing is read after it
    before = process.memory_info().rss
    store(stubs, "slow", texts(*(f"{n} {long}" for n in range(2000))), stream_id="more", level=pb.ACK_LEVEL_DURABLE)
    grown = process.memory_info().rss - before
    for call in stuck:
        call.cancel()
    # Thirty readers times 2,000 memories of 8 KB would be 480 MB.
    assert grown < 200_000_000


def _made(stubs: Stubs, namespace: str) -> str:
    """Make a namespace by its first memory; returns its name."""
    store(stubs, namespace, texts("the first"), stream_id="first", level=pb.ACK_LEVEL_ORGANIZED)
    return namespace


async def test_the_clients_watch_goes_on_over_a_restart_and_misses_and_doubles_nothing(
    make_server: ServerMaker,
) -> None:
    server = make_server().start()
    _made(server.connect(), "kept")
    heard: list[str] = []
    async with AsyncClient(f"unix:{server.socket}") as client:
        watch = client.watch("kept", kinds=[CREATED])
        async with asyncio.timeout(TIMEOUT_S), aclosing(watch):
            assert (await anext(watch)).checkpoint
            for number in range(3):
                await client.create_memory("kept", NewMemory(f"note {number}", memory_id=f"m{number}"))
                while len(heard) <= number:
                    heard += [change.memory_id for change in (await anext(watch)).changes]
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
    assert heard == ["m0", "m1", "m2"]
