"""Starting twice, being killed, draining: what was acknowledged stays, and the way down is orderly."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import grpc
import pytest
from clag.v1 import admin_service_pb2
from clag.v1 import memory_service_pb2 as pb
from grpc_health.v1 import health_pb2

from tests.conftest import ServerMaker
from tests.support.ingest import IngestStream, store, texts
from tests.support.process import ServerProcess, Stubs
from tests.support.reads import ask, get, listed
from tests.support.status import read, refused

NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVING = health_pb2.HealthCheckResponse.SERVING


def test_what_was_acknowledged_survives_a_kill(make_server: ServerMaker) -> None:
    server = make_server().start()
    with IngestStream(server.connect(), "crash") as stream:
        stream.batch(texts(*(f"note {n}" for n in range(1, 41))))
        stream.acked()
        ids = [result.memory_id for result in stream.results]
        server.kill()
    again = make_server(server__socket=str(server.socket)).start()  # the socket file of the dead is replaced
    stubs = again.connect()
    assert [get(stubs, "crash", memory_id).text for memory_id in ids] == [f"note {n}" for n in range(1, 41)]
    assert len(listed(stubs, "crash")) == 40
    with IngestStream(stubs, "crash") as resumed:
        assert resumed.opened.next_seq == 41
        resumed.batch(texts("note 41"))
        assert resumed.finish().created == 41
    # What the dead server had not organized is organized by the new one, and found.
    assert "note 7" in [hit.memory.text for hit in ask(stubs, "crash", "note 7")]


def test_a_second_server_fails_at_once_and_names_the_first(make_server: ServerMaker) -> None:
    first = make_server(server__tcp="127.0.0.1:0").start()
    same_data = make_server().spawn()
    assert same_data.wait() == 3
    assert f"data directory {first.data_dir} is in use by another server (process {first.pid})" in same_data.log
    same_socket = make_server("other", server__socket=str(first.socket)).spawn()
    assert same_socket.wait() == 3
    assert f"socket {first.socket} is in use by another server (process {first.pid})" in same_socket.log
    port = tcp_port(first.log)
    same_port = make_server("third", server__tcp=f"127.0.0.1:{port}").spawn()
    assert same_port.wait() == 3
    assert f"cannot listen on 127.0.0.1:{port}" in same_port.log
    request = health_pb2.HealthCheckRequest()
    assert first.connect().health.Check(request, timeout=20).status == SERVING


def test_a_second_server_on_a_fixed_port_is_told_which_process_has_it(make_server: ServerMaker) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    first = make_server(server__tcp=address).start()
    second = make_server("second", server__tcp=address)
    second.runtime_dir = first.runtime_dir  # the same user's
    assert second.spawn().wait() == 3
    assert f"the address {address} is in use by another server (process {first.pid})" in second.log
    assert "Traceback" not in second.log


def tcp_port(log: str) -> int:
    """The port of the ready line."""
    line = next(line for line in log.splitlines() if '"ready"' in line)
    return int(line.partition("127.0.0.1:")[2].partition('"')[0])


def test_a_drain_says_not_serving_acknowledges_and_exits_with_zero(make_server: ServerMaker) -> None:
    server = make_server().start()
    stubs = server.connect()
    watch = stubs.health.Watch(health_pb2.HealthCheckRequest(), timeout=60)
    assert next(watch).status == SERVING
    with IngestStream(stubs, "drain", level=pb.AckLevel.ACK_LEVEL_ORGANIZED) as stream:
        stream.batch(texts("one", "two", "three"))
        stream.acked()
        server.send(signal.SIGTERM)
        assert next(watch).status == NOT_SERVING
        failure = read(stream.failure())
        assert (failure.code, failure.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        assert failure.retry_after_s is not None
        assert {result.seq for result in stream.results} == {1, 2, 3}
    assert server.wait() == 0
    assert not server.socket.exists()
    again = make_server(server__socket=str(server.socket)).start()
    assert [memory.text for memory in listed(again.connect(), "drain")] == ["one", "two", "three"]


@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_a_client_that_leaves_keeps_what_was_acknowledged_and_can_go_on(
    stubs: Stubs, namespace: str, how: str
) -> None:
    with IngestStream(stubs, namespace, timeout_s=2.0 if how == "deadline" else 60.0) as stream:
        stream.batch(texts("one", "two"))
        stream.acked()
        if how == "cancel":
            stream.call.cancel()
        ended = read(stream.failure())
    assert ended.code in (grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)
    with IngestStream(stubs, namespace) as again:
        assert again.opened.next_seq == 3
        again.batch(texts("two", "three"), first_seq=2)
        again.acked(3)
        again.finish()
    assert [memory.text for memory in listed(stubs, namespace)] == ["one", "two", "three"]


def test_a_client_that_is_killed_leaves_what_was_acknowledged_and_no_open_stream(
    shared_server: ServerProcess, stubs: Stubs, namespace: str
) -> None:
    command = [sys.executable, "-m", "tests.support.endless_client", str(shared_server.socket), namespace]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        acked = 0
        while acked < 100:
            acked = int(client.stdout.readline())
        client.kill()
    request = admin_service_pb2.GetStatsRequest(namespace=namespace)
    while stubs.admin.GetStats(request, timeout=20).open_streams:  # until the server has noticed
        pass
    with IngestStream(stubs, namespace, "endless") as again:
        durable = again.opened.next_seq - 1
        assert durable >= acked
        again.batch(texts(f"note {durable + 1}"))
        again.finish()
    stored = [memory.text for memory in listed(stubs, namespace, page_size=1000)]
    assert stored == [f"note {number}" for number in range(1, durable + 2)]


def test_an_abandoned_stream_is_closed_and_others_go_on(stubs: Stubs, namespace: str) -> None:
    with IngestStream(stubs, namespace) as stream:
        stream.batch(texts("before"))
        stream.acked()
        stream.call.cancel()
    store(stubs, namespace, texts("after"), stream_id="another")
    assert [memory.text for memory in listed(stubs, namespace)] == ["before", "after"]
    stats = stubs.admin.GetStats(admin_service_pb2.GetStatsRequest(namespace=namespace), timeout=20)
    assert stats.open_streams == 0


def test_a_call_ends_at_its_own_deadline_and_no_work_goes_on_for_it(make_server: ServerMaker) -> None:
    server = make_server(server__unary_deadline_s="1.0").start()
    stubs = server.connect()
    store(stubs, "slow", texts("the dock is B3"))
    (server.root / "script.json").write_text('{"embed": "hang"}', encoding="utf-8")
    request = pb.GetContextRequest(
        retrieve=pb.RetrieveRequest(namespace="slow", query=pb.Query(text="where is the dock"))
    )
    # A question with words is answered by them in time; one without any needs the embedder.
    by_words = stubs.memory.GetContext(request)
    assert [one.kind for one in by_words.done.degraded] == [pb.DEGRADATION_KIND_DENSE_UNAVAILABLE]
    wordless = pb.GetContextRequest(retrieve=pb.RetrieveRequest(namespace="slow", query=pb.Query(text="?!")))
    with refused(grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE"):  # the server's maximum: the caller set none
        stubs.memory.GetContext(wordless)
    with refused(grpc.StatusCode.DEADLINE_EXCEEDED):
        stubs.memory.GetContext(wordless, timeout=0.2)
    (server.root / "script.json").write_text("{}", encoding="utf-8")
    assert stubs.memory.GetContext(request, timeout=20).memories.hits[0].memory.text == "the dock is B3"
    assert server.terminate() == 0


def test_wrong_settings_end_the_start_with_one_line_each(make_server: ServerMaker) -> None:
    server = make_server(server__tcp="0.0.0.0:7070", log__level="loud").spawn()
    assert server.wait() == 2
    assert "refused without TLS" in server.log
    assert "log.level" in server.log
    assert "Traceback" not in server.log


def test_a_catalog_that_cannot_be_opened_ends_the_start_with_the_reason(make_server: ServerMaker) -> None:
    server = make_server()
    server.data_dir.mkdir(parents=True, mode=0o700)
    (server.data_dir / "catalog.db").write_bytes(b"this is no database" * 400)
    server.spawn()
    assert server.wait() == 5
    (line,) = [line for line in server.log.splitlines() if "cannot start" in line]
    assert "storage failed" in line
    assert "Traceback" not in server.log
