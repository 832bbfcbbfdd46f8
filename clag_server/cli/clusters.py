"""`clag clusters` (a list; its subcommands are in `cluster_edits`) and `clag cluster ID`."""

from __future__ import annotations

import click
import grpc
from clag.v1 import types_pb2
from clag_client import AsyncClient, ClagError
from click.core import ParameterSource

from clag_server.cli.cluster_edits import EDITS
from clag_server.cli.connection import talk
from clag_server.cli.messages import as_json as to_json
from clag_server.cli.options import ConnectionFlags, client_options, json_option, namespace_option
from clag_server.cli.output import console, facts, print_document, print_lines, table
from clag_server.cli.safe import one_line, shorten
from clag_server.cli.words import date, enum_word, moment

__all__ = ["cluster_command", "clusters_command"]

_TITLE_CHARS = 40
_TAGS_CHARS = 60


@click.group("clusters", invoke_without_command=True, commands=EDITS)
@namespace_option
@click.option("--archived", is_flag=True, help="List archived clusters too.")
@json_option
@client_options
@click.pass_context
def clusters_command(
    ctx: click.Context, *, connection: ConnectionFlags, namespace: str, archived: bool, as_json: bool
) -> None:
    """List the clusters of a namespace, the largest first; or edit them by hand."""
    if ctx.invoked_subcommand is not None:
        _refuse_own_flags(ctx)
        return

    async def work(client: AsyncClient) -> list[types_pb2.Cluster]:
        return [one async for one in client.list_clusters(namespace, include_archived=archived)]

    clusters = sorted(talk(connection, work), key=lambda one: -one.memory_count)
    if as_json:
        print_lines(to_json(one) for one in clusters)
        return
    shown = table("id", "title", "memories#", "episodes#", "cohesion#", "last activity", "tags")
    for one in clusters:
        shown.add_row(
            one_line(one.cluster_id),
            shorten(one.title, _TITLE_CHARS),
            f"{one.memory_count:,}",
            f"{one.episode_count:,}",
            f"{one.cohesion:.2f}",
            date(one.last_activity_time),
            shorten(", ".join(one.tags), _TAGS_CHARS),
            style="dim" if one.state == types_pb2.CLUSTER_STATE_ARCHIVED else None,
        )
    console().print(shown)


def _refuse_own_flags(ctx: click.Context) -> None:
    """Refuse the list's flags before a subcommand: they would be lost, and another namespace be edited."""
    for name in ctx.params:
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"put --{name.replace('_', '-')} behind {ctx.invoked_subcommand}", ctx)


@click.command("cluster")
@click.argument("cluster_id")
@namespace_option
@json_option
@client_options
def cluster_command(*, connection: ConnectionFlags, cluster_id: str, namespace: str, as_json: bool) -> None:
    """Show one cluster: its profile and its most typical memories."""

    async def work(client: AsyncClient) -> tuple[types_pb2.Cluster, list[types_pb2.Memory]]:
        try:
            cluster = await client.get_cluster(namespace, cluster_id)
        except ClagError as error:
            if error.code is grpc.StatusCode.NOT_FOUND:
                await client.stats(namespace)  # says so when it is the namespace that does not exist
            raise
        typical = [await client.get_memory(namespace, one) for one in cluster.representative_ids]
        return cluster, typical

    cluster, typical = talk(connection, work)
    if as_json:
        print_document(to_json(cluster) | {"representatives": [to_json(memory) for memory in typical]})
        return
    out = console()
    out.print(
        facts(
            {
                "cluster": one_line(cluster.cluster_id),
                "title": one_line(cluster.title) + (" (stale)" if cluster.profile_stale else ""),
                "summary": one_line(cluster.summary),
                "tags": one_line(", ".join(cluster.tags)),
                "profile by": enum_word(types_pb2.AnnotationSource.Name, cluster.profiled_by),
                "state": enum_word(types_pb2.ClusterState.Name, cluster.state)
                + (", pinned" if cluster.pinned else ""),
                "memories": f"{cluster.memory_count:,} in {cluster.episode_count:,} episodes",
                "cohesion": f"{cluster.cohesion:.3f} (mean cosine to the centroid)",
                "founded": moment(cluster.create_time),
                "last activity": moment(cluster.last_activity_time),
            }
        )
    )
    listed = table("typical memory", "date", "speaker", "text")
    for memory in typical:
        listed.add_row(
            one_line(memory.memory_id), date(memory.event_time), one_line(memory.speaker), one_line(memory.text)
        )
    out.print(listed)
