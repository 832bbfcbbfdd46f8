"""`clag memories` and `clag delete ID...`."""

from __future__ import annotations

from collections.abc import Iterable

import click
from clag.v1 import types_pb2
from clag_client import AsyncClient

from clag_server.cli.connection import talk
from clag_server.cli.errors import ExitCode
from clag_server.cli.messages import as_json as to_json
from clag_server.cli.options import ConnectionFlags, client_options, json_option, namespace_option
from clag_server.cli.output import console, print_lines, table
from clag_server.cli.safe import one_line, shorten, visible
from clag_server.cli.words import date, enum_word

__all__ = ["delete_command", "memories_command"]

_TEXT_CHARS = 90


@click.command("memories")
@namespace_option
@click.option("--session", multiple=True, help="Of this session.")
@click.option("--speaker", multiple=True, help="Of this speaker.")
@click.option("--tag", multiple=True, help="With this tag.")
@click.option("--cluster", multiple=True, help="In this cluster.")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many.  [default: all]")
@json_option
@client_options
def memories_command(
    *,
    connection: ConnectionFlags,
    namespace: str,
    session: tuple[str, ...],
    speaker: tuple[str, ...],
    tag: tuple[str, ...],
    cluster: tuple[str, ...],
    limit: int | None,
    as_json: bool,
) -> None:
    """List memories in order of arrival.

    A flag may be given several times: one of its values must fit. Different flags must all fit.
    """
    wanted = _filter(
        (
            (types_pb2.FILTER_FIELD_SESSION_ID, session),
            (types_pb2.FILTER_FIELD_SPEAKER, speaker),
            (types_pb2.FILTER_FIELD_TAG, tag),
            (types_pb2.FILTER_FIELD_CLUSTER_ID, cluster),
        )
    )

    async def work(client: AsyncClient) -> list[types_pb2.Memory]:
        found: list[types_pb2.Memory] = []
        left = limit
        async for memory in client.list_memories(namespace, filter=wanted, page_size=min(limit or 500, 500)):
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
@click.argument("memory_ids", nargs=-1, required=True)
@namespace_option
@json_option
@client_options
def delete_command(
    *, connection: ConnectionFlags, memory_ids: tuple[str, ...], namespace: str, as_json: bool
) -> ExitCode:
    """Delete memories everywhere: retrieval, profiles, links, history. Exits with 1 when one does not exist."""

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


def _filter(wanted: Iterable[tuple[types_pb2.FilterField.ValueType, tuple[str, ...]]]) -> types_pb2.Filter | None:
    """All fields must fit, each with one of its values; None when nothing is asked for."""
    parts = [
        types_pb2.Filter(
            comparison=types_pb2.Comparison(
                field=field,
                op=types_pb2.FILTER_OPERATOR_IN,
                value=types_pb2.AttributeValue(string_list=types_pb2.StringList(values=values)),
            )
        )
        for field, values in wanted
        if values
    ]
    return types_pb2.Filter(all=types_pb2.FilterList(filters=parts)) if parts else None
