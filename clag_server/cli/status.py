"""`clag status`: health, models, index, backlog, counts and running operations of a server."""

from __future__ import annotations

from dataclasses import dataclass

import click
import grpc
from clag.v1 import admin_service_pb2 as pb
from clag_client import AsyncClient
from clag_client.connect import channel_to
from clag_client.errors import from_rpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rich.table import Table

from clag_server.cli.connection import Endpoint, endpoint, talk
from clag_server.cli.errors import ExitCode
from clag_server.cli.messages import as_json as to_json
from clag_server.cli.messages import seconds
from clag_server.cli.operations import RUNNING, listed, running_table
from clag_server.cli.options import ConnectionFlags, client_options, json_option
from clag_server.cli.output import console, facts, print_document, table
from clag_server.cli.safe import one_line
from clag_server.cli.trust import probe_line
from clag_server.cli.words import enum_word, moment

__all__ = ["status_command"]

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class _Status:
    """Everything that is shown; `health` is a name of `HealthCheckResponse.ServingStatus`."""

    health: str
    info: pb.GetServerInfoResponse
    server: pb.GetStatsResponse
    namespaces: list[pb.GetStatsResponse]
    operations: list[pb.Operation]


@click.command("status")
@json_option
@client_options
def status_command(*, connection: ConnectionFlags, as_json: bool) -> ExitCode:
    """Show how a running server is: health, models, index, work that waits, memories of each namespace, operations.

    Exits with 4 when the server answers but does not serve (yet).
    """
    there = endpoint(connection)

    async def work(client: AsyncClient) -> _Status:
        health = await _health(there, connection.timeout_s)
        info = await client.server_info()
        names = await _namespaces(client, connection.timeout_s)
        running = [one for one in await listed(client, "", connection.timeout_s) if one.state in RUNNING]
        server = await client.stats()
        return _Status(health, info, server, [await client.stats(name) for name in names], running)

    status = talk(connection, work)
    if as_json:
        print_document(
            {
                "health": status.health,
                "server": to_json(status.info),
                "stats": to_json(status.server),
                "namespaces": [to_json(one) for one in status.namespaces],
                "operations": [to_json(one) for one in status.operations],
            }
        )
    else:
        out = console()
        out.print(facts(_server_facts(there, status)))
        out.print(_namespace_table(status.namespaces))
        if status.operations:
            out.print(running_table(status.operations))
    return ExitCode.OK if status.health == "SERVING" else ExitCode.SERVER


async def _health(there: Endpoint, timeout_s: float) -> str:
    """Ask the standard health service, which also answers while models load."""
    async with channel_to(there.target, tls=there.tls) as channel:
        metadata = (("authorization", f"Bearer {there.token}"),) if there.token else None
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=timeout_s, metadata=metadata
            )
        except grpc.aio.AioRpcError as error:
            return error.code().name  # the calls that follow say what it means
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


async def _namespaces(client: AsyncClient, timeout_s: float) -> list[str]:
    names: list[str] = []
    request = pb.ListNamespacesRequest(page_size=_PAGE)
    while True:
        try:
            page = await client.admin.ListNamespaces(request, timeout=timeout_s, metadata=client.metadata)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error) from None
        names += [one.namespace for one in page.namespaces if not one.deleting]
        if not page.next_page_token:
            return names
        request.page_token = page.next_page_token


def _server_facts(there: Endpoint, status: _Status) -> dict[str, str]:
    info, stats = status.info, status.server
    return {
        "server": f"{one_line(there.target)}, version {one_line(info.version)}",
        "health": status.health.lower().replace("_", " "),
        "started": f"{moment(info.start_time)} UTC",
        "embedder": _model(info.embedder),
        "SLM": _model(info.slm),
        "SLM probe": probe_line(info),
        "index": " ".join((enum_word(pb.IndexState.Name, stats.index.state), one_line(stats.index.detail))),
        "backlog": _backlog(stats),
        "items": (
            f"{stats.outcomes.created:,} created, {stats.outcomes.duplicate:,} duplicate, "
            f"{stats.outcomes.rejected:,} rejected, {stats.outcomes.quarantined:,} quarantined"
        ),
        "SLM work": (
            f"{stats.outcomes.slm_requests:,} requests, {stats.outcomes.slm_fallbacks:,} fell back, "
            f"{stats.outcomes.deferred:,} decisions deferred"
        ),
        "on disk": f"{stats.bytes_on_disk / 1e6:,.1f} MB",
        "open streams": f"{stats.open_streams:,}",
    }


def _model(model: pb.ModelInfo) -> str:
    if model.state == pb.MODEL_STATE_DISABLED:
        return "none"
    state = enum_word(pb.ModelState.Name, model.state)
    where = f" on {one_line(model.device)}" if model.device else ""
    parts = [f"{one_line(model.name)}, {state}{where} {one_line(model.detail)}".rstrip()]
    work = model.work
    if work.calls or work.failures:
        failed = ", ".join(f"{count:,} {one_line(cause)}" for cause, count in sorted(work.failures.items()))
        parts.append(f"{work.calls:,} calls" + (f" ({failed})" if failed else ""))
        parts.append(f"{work.waiting:,} waiting, wait p99 {1000 * seconds(work.wait_p99):,.0f} ms")
        parts.append(f"{work.batch_mean:.1f} a batch, {work.tokens_per_second:,.0f} tokens/s")
    if work.prefix_hits or work.prefix_misses:
        share = work.prefix_hits / (work.prefix_hits + work.prefix_misses)
        parts.append(f"{share:.0%} of beginnings kept")
    return "; ".join(parts)


def _backlog(stats: pb.GetStatsResponse) -> str:
    """Work that waits, with the reason of the last failure where there was one."""
    waiting = [
        f"{enum_word(pb.Stage.Name, one.stage)} {one.pending:,}"
        + (f" (oldest {seconds(one.oldest_age):.0f} s)" if one.HasField("oldest_age") else "")
        + (f" [{one_line(one.last_error)}]" if one.last_error else "")
        for one in stats.backlog
        if one.pending
    ]
    return ", ".join(waiting) or "none"


def _namespace_table(namespaces: list[pb.GetStatsResponse]) -> Table:
    shown = table("namespace", "memories#", "organized#", "quarantined#", "clusters#", "episodes#", "backlog")
    for one in namespaces:
        shown.add_row(
            one_line(one.namespace),
            f"{one.memories.total:,}",
            f"{one.memories.evolved:,}",
            f"{one.memories.quarantined:,}",
            f"{one.clusters:,}",
            f"{one.episodes:,}",
            _backlog(one),
        )
    return shown
