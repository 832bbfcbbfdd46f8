"""`clag memories` and `clag delete`."""

from __future__ import annotations

import click
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from clag_client import AsyncClient

from clag_server.cli.calls import call
from clag_server.cli.connection import talk
from clag_server.cli.errors import CliError, ExitCode
from clag_server.cli.filters import filter_options
from clag_server.cli.messages import as_json as to_json
from clag_server.cli.options import ConnectionFlags, client_options, json_option, namespace_option
from clag_server.cli.output import console, print_document, print_lines, table
from clag_server.cli.safe import one_line, shorten, visible
from clag_server.cli.words import date, enum_word

__all__ = ["delete_command", "memories_command"]

_TEXT_CHARS = 90


@click.command("memories")
@namespace_option
@filter_options
@click.option("--limit", type=click.IntRange(min=1), help="At most so many.  [default: all]")
@json_option
@client_options
def memories_command(
    *,
    connection: ConnectionFlags,
    namespace: str,
    where: types_pb2.Filter | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """List memories in order of arrival.

    A flag may be given several times: one of its values must fit. Different flags must all fit.
    """

    async def work(client: AsyncClient) -> list[types_pb2.Memory]:
        found: list[types_pb2.Memory] = []
        left = limit
        async for memory in client.list_memories(namespace, filter=where, page_size=min(limit or 500, 500)):
            if as_json:
                print_lines([to_json(memory)])  # as they come: a namespace may hold millions
            else:
                found.append(memory)
            if left is not None:
                left -= 1
                if left == 0:
                    break
        return found

    found = talk(connection, work)
    if as_json:
        return
    shown = table("id", "date", "session", "speaker", "cluster", "state", "text")
    for memory in found:
        shown.add_row(
            one_line(memory.memory_id),
            date(memory.event_time),
            one_line(memory.session_id),
            one_line(memory.speaker),
            one_line(memory.cluster_id),
            enum_word(types_pb2.MemoryState.Name, memory.state),
            shorten(memory.text, _TEXT_CHARS),
        )
    console().print(shown)


@click.command("delete")
@click.argument("memory_ids", nargs=-1)
@namespace_option
@filter_options
@click.option("--dry-run", is_flag=True, help="Only count the memories that the flags name.")
@json_option
@client_options
def delete_command(
    *,
    connection: ConnectionFlags,
    memory_ids: tuple[str, ...],
    namespace: str,
    where: types_pb2.Filter | None,
    dry_run: bool,
    as_json: bool,
) -> ExitCode:
    """Delete memories everywhere: retrieval, profiles, links, history. Exits with 1 when one does not exist.

    Name them by their ids, or by flags. A flag may be given several times: one of its values must fit. Different
    flags must all fit. (To delete all that a namespace holds, delete the namespace.)
    """
    if memory_ids and where is not None:
        raise click.UsageError(
            "both ids and flags such as --session and --tag were given: name the memories by the one or the other"
        )
    if not memory_ids and where is None:
        raise click.UsageError("name memories by their ids, or by flags such as --session and --tag")
    if where is not None:
        _delete_matching(connection, namespace, where, dry_run=dry_run, as_json=as_json)
        return ExitCode.OK
    if dry_run:
        raise click.UsageError("--dry-run goes with flags such as --session and --tag")

    async def work(client: AsyncClient) -> bool:
        all_there = True
        for memory_id in memory_ids:
            answer = await client.delete_memory(namespace, memory_id, allow_missing=True)
            all_there = all_there and answer.deleted
            if as_json:
                print_lines([{"memory_id": memory_id, "deleted": answer.deleted}])
            else:
                click.echo(f"{visible(memory_id)}: {'deleted' if answer.deleted else 'there is no such memory'}")
        return all_there

    return ExitCode.OK if talk(connection, work) else ExitCode.PARTIAL


def _delete_matching(
    connection: ConnectionFlags, namespace: str, where: types_pb2.Filter, *, dry_run: bool, as_json: bool
) -> None:
    """Delete what matches, in as many calls as it takes."""

    async def work(client: AsyncClient) -> tuple[int, int, bool]:
        request = pb.DeleteMemoriesRequest(namespace=namespace, filter=where, dry_run=dry_run)
        answer = await call(client, client.memory.DeleteMemories, request, connection.timeout_s)
        matched, deleted = answer.matched, answer.deleted
        while not answer.complete and not dry_run:
            if not answer.deleted:
                if as_json:
                    print_document({"matched": matched, "deleted": deleted, "complete": False})
                raise CliError(f"{deleted:,} deleted; allow more time for the rest with --timeout", ExitCode.SERVER)
            answer = await call(client, client.memory.DeleteMemories, request, connection.timeout_s)
            deleted += answer.deleted
        return matched, deleted, answer.complete

    matched, deleted, complete = talk(connection, work)
    if as_json:
        print_document({"matched": matched, "deleted": deleted, "complete": complete})
    else:
        click.echo(f"{matched:,} match" if dry_run else f"{deleted:,} deleted")
