"""`clag watch`: changes of a namespace as they happen."""

from __future__ import annotations

import sys
from contextlib import aclosing

import click
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from clag_client import AsyncClient

from clag_server.cli.connection import talk
from clag_server.cli.errors import ExitCode
from clag_server.cli.messages import as_json as to_json
from clag_server.cli.options import ConnectionFlags, client_options, json_option, namespace_option
from clag_server.cli.output import print_lines
from clag_server.cli.safe import one_line, shorten
from clag_server.cli.words import enum_word, moment

__all__ = ["watch_command"]

_TEXT_CHARS = 80
_KINDS = {
    name.removeprefix("CHANGE_KIND_").lower().replace("_", "-"): number
    for name, number in pb.ChangeKind.items()
    if number
}


@click.command("watch")
@namespace_option
@click.option("--after", default="", metavar="REVISION", help="Resume after this revision.  [default: from now]")
@click.option("--kind", multiple=True, type=click.Choice(tuple(_KINDS)), help="Only this kind of change.")
@click.option("--count", type=click.IntRange(min=1), help="End after so many changes.  [default: never]")
@json_option
@client_options
def watch_command(
    *,
    connection: ConnectionFlags,
    namespace: str,
    after: str,
    kind: tuple[str, ...],
    count: int | None,
    as_json: bool,
) -> ExitCode:
    """Show changes as they happen, until Ctrl-C.

    With --json checkpoints are shown too: `through` of the last line is what --after takes to go on.
    """
    start_after = types_pb2.Revision(token=after) if after else None

    async def work(client: AsyncClient) -> None:
        seen = 0
        responses = client.watch(
            namespace, start_after=start_after, kinds=[_KINDS[name] for name in kind], include_values=True
        )
        async with aclosing(responses):
            async for response in responses:
                if as_json:
                    print_lines([to_json(response)])
                else:
                    for change in response.changes:
                        click.echo(_line(change))
                sys.stdout.flush()
                seen += len(response.changes)
                if count is not None and seen >= count:
                    return

    talk(connection, work)
    return ExitCode.OK


def _line(change: pb.Change) -> str:
    parts = [moment(change.time), enum_word(pb.ChangeKind.Name, change.kind)]
    if change.memory_id:
        parts.append(one_line(change.memory_id))
    if change.old_cluster_id:
        parts.append(f"{one_line(change.old_cluster_id)} ->")
    if change.cluster_id:
        parts.append(one_line(change.cluster_id))
    if change.HasField("memory"):
        parts.append(shorten(change.memory.text, _TEXT_CHARS))
    if change.HasField("cluster"):
        parts.append(one_line(change.cluster.title))
    return "  ".join(parts)
