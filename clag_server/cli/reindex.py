"""`clag reindex`: rebuild a namespace's vector index, or embed the namespace again for the server's embedder."""

from __future__ import annotations

import click
from clag.v1 import admin_service_pb2 as pb
from clag_client import AsyncClient

from clag_server.cli.calls import call
from clag_server.cli.connection import talk
from clag_server.cli.errors import ExitCode
from clag_server.cli.operations import begun_or_running, follow, told
from clag_server.cli.options import ConnectionFlags, client_options, json_option, namespace_option
from clag_server.cli.output import console
from clag_server.cli.safe import one_line

__all__ = ["reindex_command"]


@click.command("reindex")
@namespace_option
@click.option("--embedder", default="", help="Embed all memories again with this model, which the server must run.")
@click.option("--detach", is_flag=True, help="Begin it and do not wait for its end.")
@json_option
@client_options
def reindex_command(
    *, connection: ConnectionFlags, namespace: str, embedder: str, detach: bool, as_json: bool
) -> ExitCode:
    """Rebuild the vector index of a namespace from its stored vectors, or from new ones (--embedder).

    The namespace keeps serving meanwhile: by its words alone while it is embedded again. Interrupting the command
    does not stop the work; the same command again follows the work that runs, also after a restart of the server.
    """

    async def work(client: AsyncClient) -> pb.Operation:
        request = pb.ReindexRequest(namespace=namespace, embedding_model=embedder)

        async def begin() -> pb.Operation:
            return (await call(client, client.admin.Reindex, request, connection.timeout_s)).operation

        begun = await begun_or_running(client, begin(), timeout_s=connection.timeout_s)
        return begun if detach else await follow(client, begun, quiet=as_json)

    def show(ended: pb.Operation) -> None:
        model = one_line(ended.reindex.embedding_model)
        console().print(f"{ended.reindex.memories:,} memories in the index, embedded by {model}")

    return told(talk(connection, work), detach=detach, as_json=as_json, show=show)
