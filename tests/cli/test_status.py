"""`clag status` shows operations that run, of whatever server answers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from clag.v1 import admin_service_pb2 as pb
from clag.v1.admin_service_pb2_grpc import add_AdminServiceServicer_to_server
from grpc_health.v1 import health, health_pb2_grpc

from tests.cli.command import clag

RUNNING = pb.Operation(
    operation_id="op-run",
    kind=pb.OPERATION_KIND_REINDEX,
    namespace="robots",
    state=pb.OPERATION_STATE_RUNNING,
    phase="embedding",
    done=1_200,
    total=5_000,
)
WAITING = pb.Operation(
    operation_id="op-wait", kind=pb.OPERATION_KIND_DELETE_NAMESPACE, state=pb.OPERATION_STATE_PENDING
)
ENDED = pb.Operation(operation_id="op-old", kind=pb.OPERATION_KIND_REINDEX, state=pb.OPERATION_STATE_SUCCEEDED)


class AdminDouble:
    """A server with some operations, which come on two pages, and nothing else."""

    def __init__(self, *operations: pb.Operation) -> None:
        self._operations = operations

    def __getattr__(self, _name: str) -> Any:
        return lambda _request, context: context.abort(grpc.StatusCode.UNIMPLEMENTED, "not here")

    def GetServerInfo(self, _request: Any, _context: Any) -> pb.GetServerInfoResponse:  # noqa: N802
        return pb.GetServerInfoResponse(version="1")

    def ListNamespaces(self, _request: Any, _context: Any) -> pb.ListNamespacesResponse:  # noqa: N802
        return pb.ListNamespacesResponse()

    def GetStats(self, _request: Any, _context: Any) -> pb.GetStatsResponse:  # noqa: N802
        return pb.GetStatsResponse()

    def ListOperations(self, request: Any, _context: Any) -> pb.ListOperationsResponse:  # noqa: N802
        if not request.page_token:
            return pb.ListOperationsResponse(operations=self._operations[:1], next_page_token="more")
        return pb.ListOperationsResponse(operations=self._operations[1:])


@contextmanager
def serving(double: AdminDouble, folder: Path) -> Iterator[Path]:
    server = grpc.server(ThreadPoolExecutor(2))
    add_AdminServiceServicer_to_server(double, server)  # type: ignore[arg-type]  # has its methods
    health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
    server.add_insecure_port(f"unix:{folder}/s")
    server.start()
    try:
        yield folder / "s"
    finally:
        server.stop(None).wait()


def test_status_shows_what_running_operations_do_and_how_far_they_are(tmp_path: Path) -> None:
    with serving(AdminDouble(ENDED, WAITING, RUNNING), tmp_path) as socket:
        shown = clag("status", "--socket", socket, home=tmp_path)
        report = clag("status", "--socket", socket, "--json", home=tmp_path).document()
    assert shown.code == 0
    (line,) = [line for line in shown.out.splitlines() if "op-run" in line]
    assert line.split() == ["op-run", "reindex", "robots", "running", "embedding", "1,200", "of", "5,000"]
    assert "op-wait" in shown.out
    assert "op-old" not in shown.out
    assert [one["operation_id"] for one in report["operations"]] == ["op-wait", "op-run"]


def test_status_without_operations_shows_none(tmp_path: Path) -> None:
    with serving(AdminDouble(ENDED), tmp_path) as socket:
        shown = clag("status", "--socket", socket, home=tmp_path).out
    assert "health" in shown
    assert "phase" not in shown
