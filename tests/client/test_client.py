"""The client's calls: typed errors, deadlines, cancellation, values; and its synchronous face."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import grpc
import pytest
from clag.v1 import types_pb2
from clag_client import AsyncClient, ClagError, Client, FieldViolation, NewMemory, Tls
from clag_client.connect import is_local

from tests.client.stream_double import StreamDouble, connected, serving


async def test_a_failed_call_says_code_reason_fields_and_facts(tmp_path: Path) -> None:
    async with connected(StreamDouble(), tmp_path) as client:
        with pytest.raises(ClagError) as caught:
            await client.get_memory("a", "m")
    error = caught.value
    assert error.code == grpc.StatusCode.NOT_FOUND
    assert error.reason == types_pb2.ERROR_REASON_NOT_FOUND
    assert error.violations == (FieldViolation("memory_id", "is wrong"),)
    assert error.metadata == {"a": "b"}
    assert error.retry_after_s is None


async def test_a_call_ends_at_its_deadline(tmp_path: Path) -> None:
    async with connected(StreamDouble(), tmp_path) as client:
        with pytest.raises(ClagError) as caught:
            await client.get_memory("a", "slow", timeout_s=0.05)
    assert caught.value.code == grpc.StatusCode.DEADLINE_EXCEEDED


async def test_stages_come_in_order_and_end(tmp_path: Path) -> None:
    async with connected(StreamDouble(), tmp_path) as client, client.retrieve("a", "where is the dock?") as stages:
        kinds = [stage.WhichOneof("stage") async for stage in stages]
    assert kinds == ["context", "done"]


async def test_leaving_a_retrieval_early_cancels_it_on_the_server(tmp_path: Path) -> None:
    double = StreamDouble()
    async with connected(double, tmp_path) as client:
        async with client.retrieve("a", "q", max_memories=1) as stages:
            assert (await anext(stages)).context.text == "q"
        await asyncio.wait_for(double.left.wait(), timeout=10)


async def test_listing_follows_all_pages(tmp_path: Path) -> None:
    async with connected(StreamDouble(), tmp_path) as client:
        found = [memory.memory_id async for memory in client.list_memories("a")]
    assert found == ["m0", "m1", "m2", "m3", "m4"]


async def test_the_token_goes_with_every_call(tmp_path: Path) -> None:
    double = StreamDouble()
    async with connected(double, tmp_path, token="t0k") as client, client.ingest("a", ["x"]) as stream:
        await stream.wait()
    assert double.tokens == ["Bearer t0k"]


def test_a_memory_becomes_a_message_with_typed_attributes_and_exact_times() -> None:
    moment = datetime(2023, 5, 7, 9, 30, 0, 123456, tzinfo=timezone(timedelta(hours=9)))
    made = NewMemory(
        "text", attributes={"s": "x", "b": True, "i": 3, "f": 0.5, "l": ["p", "q"]}, event_time=moment
    ).to_proto()
    kinds = {key: value.WhichOneof("value") for key, value in made.attributes.items()}
    assert kinds == {
        "s": "string_value",
        "b": "bool_value",
        "i": "int_value",
        "f": "double_value",
        "l": "string_list",
    }
    assert made.event_time.ToDatetime(tzinfo=UTC) == moment
    assert not made.HasField("importance")
    assert not made.HasField("expire_time")


def test_a_time_before_the_epoch_is_exact() -> None:
    moment = datetime(1969, 12, 31, 23, 59, 59, 250_000, tzinfo=UTC)
    made = NewMemory("text", event_time=moment).to_proto()
    assert (made.event_time.seconds, made.event_time.nanos) == (-1, 250_000_000)


def test_a_time_without_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        NewMemory("text", event_time=datetime(2023, 5, 7)).to_proto()


def test_an_empty_address_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        Client("")
    assert not [thread for thread in threading.enumerate() if thread.name == "clag-client"]


@pytest.mark.parametrize(
    "target",
    [
        "198.51.100.7:7077",
        "db.example:7077",
        "localhost.example:1",
        "dns:///db.example:1",
        "ipv4:127.0.0.1:1,8.8.8.8:1",
    ],
)
def test_a_token_is_not_sent_to_another_machine_in_plain_text(target: str) -> None:
    with pytest.raises(ValueError, match="plain text"):
        Client(target, token="a secret of the server")
    assert not is_local(target)
    assert not [thread for thread in threading.enumerate() if thread.name == "clag-client"]


@pytest.mark.parametrize(
    "target",
    ["/run/s", "unix:/run/s", "127.0.0.1:7077", "127.8.8.8:1", "[::1]:7077", "Localhost:7", "dns:///localhost:7"],
)
def test_a_token_may_go_to_this_machine_in_plain_text_and_to_others_with_tls(target: str) -> None:
    with Client(target, token="a secret of the server"):
        assert is_local(target)
    with Client("db.example:7077", token="a secret of the server", tls=Tls()):
        pass


async def test_calls_to_this_machine_do_not_go_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("grpc_proxy", "https_proxy", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody answers there
    for name in ("no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with AsyncClient(f"127.0.0.1:{port}", token="a secret of the server") as client:
        with pytest.raises(ClagError) as caught:
            await client.server_info()
    await server.stop(None)
    assert caught.value.code == grpc.StatusCode.UNIMPLEMENTED  # it was reached: it serves nothing


@contextmanager
def served_elsewhere(double: type[StreamDouble], folder: Path) -> Iterator[tuple[str, StreamDouble]]:
    """Serve from another thread, so that this one can block."""
    ready = threading.Event()
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Event, StreamDouble]] = []

    async def serve() -> None:
        servicer, stop = double(), asyncio.Event()
        async with serving(servicer, folder):
            started.append((asyncio.get_running_loop(), stop, servicer))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(timeout=30)
    loop, stop, servicer = started[0]
    try:
        yield f"unix:{folder}/s", servicer
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


def test_the_synchronous_client_streams_lists_retrieves_and_fails_alike(tmp_path: Path) -> None:
    with served_elsewhere(StreamDouble, tmp_path) as (address, double), Client(address) as client:
        with client.ingest("a", (f"note {number}" for number in range(100)), stream_id="s") as stream:
            assert [outcome.seq for outcome in stream] == list(range(1, 101))
            assert stream.wait().created == 100
        with client.retrieve("a", "q") as stages:
            assert [stage.WhichOneof("stage") for stage in stages] == ["context", "done"]
        assert len(list(client.list_memories("a"))) == 5
        with pytest.raises(ClagError, match="NOT_FOUND"):
            client.get_memory("a", "m")
    assert len(double.stored["s"]) == 100
