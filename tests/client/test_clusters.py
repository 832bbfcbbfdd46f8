"""The client's edits of clusters: one edit whatever becomes of the connection, and pages followed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from clag.v1 import cluster_service_pb2 as pb
from clag.v1 import types_pb2
from clag.v1.cluster_service_pb2_grpc import add_ClusterServiceServicer_to_server
from clag_client import AsyncClient, ClagError, Client, RetryPolicy

PATIENT = RetryPolicy(reconnect_budget_s=20.0, first_pause_s=0.001, longest_pause_s=0.01)


async def _not_served(_request: object, _context: object) -> None:
    raise NotImplementedError


class ClusterDouble:
    """Keeps the requests that come; the first `failures` of them fail with the code."""

    GetCluster = ListClusters = _not_served

    def __init__(self, *, failures: int = 0, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> None:
        self.seen: list[Any] = []
        self._failures = failures
        self._code = code

    async def _take(self, request: Any, context: Any) -> None:
        self.seen.append(request)
        if len(self.seen) <= self._failures:
            await context.abort(self._code, "not now")

    async def MergeClusters(self, request: Any, context: Any) -> pb.MergeClustersResponse:  # noqa: N802
        await self._take(request, context)
        return pb.MergeClustersResponse(moved=3)

    async def SplitCluster(self, request: Any, context: Any) -> pb.SplitClusterResponse:  # noqa: N802
        await self._take(request, context)
        return pb.SplitClusterResponse()

    async def MoveMemories(self, request: Any, context: Any) -> pb.MoveMemoriesResponse:  # noqa: N802
        await self._take(request, context)
        return pb.MoveMemoriesResponse(moved=len(request.memory_ids))

    async def ArchiveCluster(self, request: Any, context: Any) -> pb.ArchiveClusterResponse:  # noqa: N802
        await self._take(request, context)
        return pb.ArchiveClusterResponse()

    async def UpdateCluster(self, request: Any, context: Any) -> pb.UpdateClusterResponse:  # noqa: N802
        await self._take(request, context)
        return pb.UpdateClusterResponse(cluster=request.cluster)

    async def ListClusterHistory(self, request: Any, context: Any) -> pb.ListClusterHistoryResponse:  # noqa: N802
        await self._take(request, context)
        first = int(request.page_token or 0)
        entries = [pb.ClusterHistoryEntry(memories=n) for n in range(first, min(first + 2, 5))]
        return pb.ListClusterHistoryResponse(entries=entries, next_page_token=str(first + 2) if first < 3 else "")


@asynccontextmanager
async def serving(double: ClusterDouble, folder: Path) -> AsyncIterator[str]:
    server = grpc.aio.server()
    add_ClusterServiceServicer_to_server(double, server)  # type: ignore[arg-type]  # has its methods
    target = f"unix:{folder}/clusters.sock"
    server.add_insecure_port(target)
    await server.start()
    try:
        yield target
    finally:
        await server.stop(None)


async def test_an_edit_is_repeated_under_one_request_id_while_the_server_is_away(tmp_path: Path) -> None:
    double = ClusterDouble(failures=2)
    async with serving(double, tmp_path) as target, AsyncClient(target, retry=PATIENT) as client:
        assert (await client.merge_clusters("a", "c1", ["c2"])).moved == 3
        await client.merge_clusters("a", "c1", ["c3"])
    first, *again, other = double.seen
    assert again == [first, first]
    assert first.edit.request_id not in ("", other.edit.request_id)


@pytest.mark.parametrize("code", [grpc.StatusCode.ABORTED, grpc.StatusCode.NOT_FOUND])
async def test_an_edit_that_is_refused_is_not_repeated(tmp_path: Path, code: grpc.StatusCode) -> None:
    double = ClusterDouble(failures=9, code=code)
    async with serving(double, tmp_path) as target, AsyncClient(target, retry=PATIENT) as client:
        with pytest.raises(ClagError) as caught:
            await client.archive_cluster("a", "c1", request_id="mine", etag="7")
    assert caught.value.code is code
    assert [(one.edit.request_id, one.edit.etag, one.archived) for one in double.seen] == [("mine", "7", True)]


async def test_only_what_is_given_of_a_profile_changes(tmp_path: Path) -> None:
    double = ClusterDouble()
    async with serving(double, tmp_path) as target, AsyncClient(target) as client:
        await client.update_cluster("a", "c1", title="Docks", tags=[], validate_only=True)
        await client.update_cluster("a", "c1", pinned=False)
    first, second = double.seen
    assert (list(first.update_mask.paths), first.cluster.title) == (["title", "tags"], "Docks")
    assert (first.edit.validate_only, second.edit.validate_only) == (True, False)
    assert list(second.update_mask.paths) == ["pinned"]


def split(client: Client) -> object:
    return client.split_cluster("a", "c1", 3)


def split_by_groups(client: Client) -> object:
    return client.split_cluster("a", "c1", [pb.MemoryGroup(title="t", memory_ids=["m"])])


def move(client: Client) -> object:
    return client.move_memories("a", "c1", ["m", "n"])


@pytest.mark.parametrize("edit", [split, split_by_groups, move])
async def test_the_synchronous_client_edits_alike(tmp_path: Path, edit: Callable[[Client], object]) -> None:
    double = ClusterDouble(failures=1)

    def work(target: str) -> tuple[object, list[int]]:
        with Client(target, retry=PATIENT) as client:
            done = edit(client)
            client.update_cluster("a", "c1", title="x")
            client.merge_clusters("a", "c1", ["c2"])
            client.archive_cluster("a", "c1", archived=False)
            return done, [entry.memories for entry in client.cluster_history("a", "c1")]

    async with serving(double, tmp_path) as target:
        done, history = await asyncio.to_thread(work, target)
    assert double.seen[0] == double.seen[1]
    assert history == [0, 1, 2, 3, 4]
    expected: dict[Callable[[Client], object], object] = {
        split: pb.SplitClusterResponse(),
        split_by_groups: pb.SplitClusterResponse(),
        move: pb.MoveMemoriesResponse(moved=2),
    }
    assert done == expected[edit]
    if edit is split_by_groups:
        assert double.seen[0].groups.groups[0].memory_ids == ["m"]
    assert [type(one) for one in double.seen[2:5]] == [
        pb.UpdateClusterRequest,
        pb.MergeClustersRequest,
        pb.ArchiveClusterRequest,
    ]
    assert double.seen[2].cluster == types_pb2.Cluster(title="x")
