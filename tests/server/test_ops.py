"""Locks, directories, tokens, certificates and logs."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import NoReturn, cast

import grpc
import pytest
import structlog
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from clag.v1.memory_service_pb2_grpc import MemoryServiceStub

from clag_server.api.facts import ModelFacts, ServerFacts
from clag_server.api.interceptors import CallCounters, DrainGate, standard_interceptors
from clag_server.api.memory import MemoryServicer
from clag_server.contract.codec import register
from clag_server.memory.answering import Answering
from clag_server.memory.config import IngestConfig
from clag_server.memory.feeds import Feeds
from clag_server.memory.service import MemoryService
from clag_server.models.api import EngineState, EngineStatus
from clag_server.ops.directories import private_directory
from clag_server.ops.errors import AlreadyRunning, UnsafeDirectory, UnusableFile
from clag_server.ops.locks import FileLock
from clag_server.ops.logging import configure_logging
from clag_server.ops.tls import server_credentials
from clag_server.ops.tokens import make_token, read_token
from clag_server.types.memory import NewMemory


def test_a_second_holder_is_told_who_has_the_lock(tmp_path: Path) -> None:
    first, second = (FileLock(tmp_path / "x.lock", what="the data directory") for _ in range(2))
    with first, pytest.raises(AlreadyRunning, match=rf"the data directory .*process {os.getpid()}"):
        second.acquire()


def test_a_lock_is_free_again_after_its_holder_was_killed(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from clag_server.ops.locks import FileLock;"
        "lock = FileLock(pathlib.Path(sys.argv[1]), what='it').acquire();"
        "sys.stdout.write('held\\n'); sys.stdout.flush(); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "x.lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(AlreadyRunning, match=f"process {holder.pid}"):
            FileLock(tmp_path / "x.lock", what="it").acquire()
        holder.kill()
    FileLock(tmp_path / "x.lock", what="it").acquire().release()


def test_a_private_directory_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    made = private_directory(tmp_path / "a" / "b")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    with pytest.raises(UnsafeDirectory, match="writable for others"):
        private_directory(tmp_path / "open")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_someone_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", 12_345, 12_345)
    with pytest.raises(UnsafeDirectory, match="belongs to user 12345"):
        private_directory(tmp_path / "theirs")


def test_a_token_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    first = make_token(path)
    assert make_token(path) == first
    assert len(first) >= 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("content", ["", "short", "has spaces in between it", "ünïcödé-ünïcödé-ünïcödé"])
def test_a_token_that_is_no_token_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "token"
    path.write_text(content, encoding="utf-8")
    path.chmod(0o600)
    with pytest.raises(UnusableFile, match=r"server\.token_file"):
        read_token(path, setting="server.token_file")


def test_a_token_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("0123456789abcdef0123", encoding="ascii")
    path.chmod(0o644)
    with pytest.raises(UnusableFile, match="make it 0600"):
        read_token(path, setting="server.token_file")


def test_a_certificate_file_without_a_certificate_is_refused_by_setting(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("-----BEGIN PRIVATE KEY-----\n", encoding="ascii")
    (tmp_path / "cert.pem").write_text("nothing", encoding="ascii")
    with pytest.raises(UnusableFile, match=r"server\.tls_cert"):
        server_credentials(cert=tmp_path / "cert.pem", key=tmp_path / "key.pem", client_ca=None)


@pytest.fixture
def restored_logging() -> object:
    yield None
    structlog.reset_defaults()


def logged(level: str, write_at: str) -> dict[str, object]:
    out = io.StringIO()
    configure_logging(level=level, json=True, stream=out)
    getattr(structlog.get_logger("clag.test"), write_at)("stored", text="my secret", memory_id="m1")
    return dict(json.loads(out.getvalue()))


@pytest.mark.usefixtures("restored_logging")
def test_logs_hide_what_users_remember_above_debug() -> None:
    line = logged("info", "info")
    assert line["memory_id"] == "m1"
    assert line["level"] == "info"
    assert "my secret" not in str(line)


@pytest.mark.usefixtures("restored_logging")
def test_logs_show_it_at_debug() -> None:
    assert logged("debug", "debug")["text"] == "my secret"


@pytest.mark.usefixtures("restored_logging")
def test_libraries_log_in_the_same_form() -> None:
    import logging

    out = io.StringIO()
    configure_logging(level="info", json=True, stream=out)
    logging.getLogger("pymilvus").warning("lost %s", "connection")
    logging.getLogger("pymilvus").info("chatter")
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(line["event"], line["level"], line["logger"]) for line in lines] == [
        ("lost connection", "warning", "pymilvus")
    ]


class Failing:
    """A domain whose one method has a fault of the program's own, with a memory in its hands."""

    async def create_memory(self, _namespace: str, memory: NewMemory, **_: object) -> NoReturn:
        words = memory.text.split()
        raise RuntimeError(f"went wrong after {len(words)} words")


@pytest.mark.usefixtures("restored_logging")
@pytest.mark.parametrize("as_json", [True, False], ids=["json", "console"])
async def test_a_failing_handlers_log_has_its_traceback_and_no_memory_text(*, as_json: bool) -> None:
    out = io.StringIO()
    configure_logging(level="info", json=as_json, stream=out)
    gate = DrainGate()
    gate.open()
    status = ModelFacts(EngineStatus(EngineState.READY, "tiny"), dim=8)
    facts = ServerFacts(IngestConfig(), 30.0, 0, (), embedder=lambda: status, slm=lambda: status)
    guards = standard_interceptors(token="t" * 20, unary_deadline_s=30.0, gate=gate, counters=CallCounters())
    server = grpc.aio.server(interceptors=guards)
    nothing = (cast("Feeds", None), cast("Answering", None))
    register(server, MemoryServicer(cast("MemoryService", Failing()), facts, gate, *nothing), "MemoryService")
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        request = pb.CreateMemoryRequest(namespace="n", memory=types_pb2.MemoryInput(text="zebra umbrella quartz"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await MemoryServiceStub(channel).CreateMemory(
                request, metadata=(("authorization", f"Bearer {'t' * 20}"),)
            )
    await server.stop(None)
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    log = out.getvalue()
    assert "Traceback" in log
    assert "went wrong after 3 words" in log
    for word in request.memory.text.split():
        assert word not in log
