"""Working with less: health says NOT_SERVING only when nothing can be stored; the rest is said with its reason."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import psutil
import pytest
from clag.v1 import admin_service_pb2 as admin
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from grpc_health.v1 import health_pb2

from clag_server.api.health import HealthServicer
from clag_server.api.readiness import Readiness
from clag_server.models.api import EngineState, EngineStatus
from clag_server.types.errors import StorageFailed
from tests.conftest import ServerMaker
from tests.support.ingest import store, texts
from tests.support.process import ServerProcess, Stubs
from tests.support.reads import ask, listed
from tests.support.status import refused

DURABLE = pb.AckLevel.ACK_LEVEL_DURABLE
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
FILE_BYTES = 128 * 1024


@contextmanager
def no_room(server: ServerProcess) -> Iterator[None]:
    """Let the server write no file beyond `FILE_BYTES`, as a full disk would; its write-ahead log is longer."""
    assert (server.data_dir / "catalog.db-wal").stat().st_size > FILE_BYTES
    process = psutil.Process(server.pid)
    soft, hard = process.rlimit(resource.RLIMIT_FSIZE)
    process.rlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, hard))
    try:
        yield
    finally:
        process.rlimit(resource.RLIMIT_FSIZE, (soft, hard))


def health(stubs: Stubs, service: str) -> int:
    return int(stubs.health.Check(health_pb2.HealthCheckRequest(service=service), timeout=20).status)


def stats(stubs: Stubs, namespace: str = "") -> admin.GetStatsResponse:
    response: admin.GetStatsResponse = stubs.admin.GetStats(admin.GetStatsRequest(namespace=namespace), timeout=20)
    return response


def test_a_full_disk_is_said_by_health_loses_nothing_and_passes_by_itself(make_server: ServerMaker) -> None:
    server = make_server().start()
    stubs = server.connect()
    store(stubs, "full", texts(*(f"{n} " + "x" * 30_000 for n in range(20))), level=DURABLE)
    watch = stubs.health.Watch(health_pb2.HealthCheckRequest(service="clag.v1.MemoryService"), timeout=60)
    assert next(watch).status == SERVING
    with no_room(server):
        with refused(grpc.StatusCode.UNAVAILABLE, "STORAGE_DEGRADED") as failures:
            store(stubs, "full", texts("no room"), stream_id="late", level=DURABLE)
        assert failures[0].retry_after_s is not None
        assert next(watch).status == NOT_SERVING
        assert health(stubs, "") == NOT_SERVING
        assert health(stubs, "clag.v1.AdminService") == SERVING
        assert len(listed(stubs, "full")) == 20  # reading goes on
    assert next(watch).status == SERVING
    store(stubs, "full", texts("room again"), stream_id="late", level=pb.AckLevel.ACK_LEVEL_SEARCHABLE)
    assert [memory.text[:10] for memory in listed(stubs, "full")][-1] == "room again"
    assert len(listed(stubs, "full")) == 21
    assert stats(stubs, "full").outcomes.created == 21
    watch.cancel()


def test_an_index_that_is_away_is_said_with_the_reason_while_everything_is_served(make_server: ServerMaker) -> None:
    stubs = make_server(index__uri="http://127.0.0.1:1").start().connect()
    store(stubs, "away", texts("the dock is B3"))
    assert ask(stubs, "away", "the dock is B3")[0].memory.text == "the dock is B3"
    index = stats(stubs).index
    assert index.state in (admin.IndexState.INDEX_STATE_REBUILDING, admin.IndexState.INDEX_STATE_DEGRADED)
    assert index.detail
    assert index.rows == 1
    assert health(stubs, "clag.v1.MemoryService") == SERVING


def test_an_slm_that_is_away_is_said_with_the_reason_and_counted_by_cause(make_server: ServerMaker) -> None:
    server = make_server(organize__annotate="slm")
    server.root.mkdir(parents=True)
    (server.root / "script.json").write_text('{"choose": "unavailable", "generate": "unavailable"}', "utf-8")
    stubs = server.start().connect()
    store(stubs, "away", texts("the dock is B3", "lunch is at noon"), level=pb.AckLevel.ACK_LEVEL_ORGANIZED)
    slm = stubs.admin.GetServerInfo(admin.GetServerInfoRequest(), timeout=20).slm
    assert slm.state == admin.ModelState.MODEL_STATE_UNAVAILABLE
    assert slm.detail
    outcomes = stats(stubs, "away").outcomes
    unavailable = types_pb2.FallbackCause.FALLBACK_CAUSE_UNAVAILABLE
    assert {one.cause: one.count for one in outcomes.fallbacks} == {unavailable: 2}
    assert (outcomes.slm_requests, outcomes.slm_fallbacks) == (2, 2)
    assert health(stubs, "clag.v1.MemoryService") == SERVING


class Disk:
    """A catalog's disk that can be full."""

    def __init__(self) -> None:
        self.write_failure = ""
        self.full = False

    async def probe_write(self) -> None:
        if self.full:
            raise StorageFailed("no space left")
        self.write_failure = ""


@pytest.mark.parametrize("state", list(EngineState))
async def test_only_an_absent_embedder_takes_the_service_out(state: EngineState) -> None:
    servicer = HealthServicer(["memory"])
    watched = Readiness(
        servicer, ["memory"], catalog=Disk(), embedder=lambda: EngineStatus(state, "tiny", "its file is gone")
    )
    await watched.check()
    answers = await servicer.List(health_pb2.HealthListRequest(), None)  # type: ignore[arg-type] # it needs no call
    expected = NOT_SERVING if state is EngineState.ABSENT else SERVING
    assert answers.statuses["memory"].status == expected


async def test_a_catalog_that_could_not_write_is_probed_until_it_can() -> None:
    servicer, disk = HealthServicer(["memory"]), Disk()
    watched = Readiness(
        servicer, ["memory"], catalog=disk, embedder=lambda: EngineStatus(EngineState.READY, "tiny")
    )
    disk.full, disk.write_failure = True, "no space left"
    told = []
    for full in (True, True, False):
        disk.full = full
        await watched.check()
        answers = await servicer.List(health_pb2.HealthListRequest(), None)  # type: ignore[arg-type]
        told.append(answers.statuses["memory"].status)
    assert told == [NOT_SERVING, NOT_SERVING, SERVING]
