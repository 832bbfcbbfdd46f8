"""`clag update ID`: change fields of one memory."""

from __future__ import annotations

from typing import Any, Final

import click
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from clag_client import AsyncClient
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from clag_server.cli.calls import call
from clag_server.cli.connection import talk
from clag_server.cli.filters import Instant
from clag_server.cli.messages import as_json as to_json
from clag_server.cli.options import ConnectionFlags, client_options, json_option, namespace_option
from clag_server.cli.output import print_document
from clag_server.cli.safe import visible

__all__ = ["update_command"]

_FIELDS: Final = {
    "text": "text",
    "speaker": "speaker",
    "session": "session_id",
    "task": "task",
    "importance": "importance",
}
"""Flags with one value, and the fields that they set."""

_KINDS: Final = {
    name.removeprefix("MEMORY_KIND_").lower(): number for name, number in types_pb2.MemoryKind.items() if number
}


class _OptionalInstant(click.ParamType[Timestamp | str]):
    """A time, or an empty text for none."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Timestamp | str:
        """Read it."""
        return "" if value == "" else Instant().convert(value, param, ctx)


@click.command("update")
@click.argument("memory_id")
@namespace_option
@click.option("--text", help="The new text; it is embedded before the command ends.")
@click.option("--kind", type=click.Choice(tuple(_KINDS)), help="What kind of experience it is.")
@click.option("--speaker", help='Who spoke ("" for nobody).')
@click.option("--session", help='Move it to the end of this session ("" takes it out of its session).')
@click.option("--task", help='What the agent was doing ("" for none).')
@click.option("--importance", type=click.FloatRange(0, 1), help="0 to 1.")
@click.option("--time", "event_time", type=_OptionalInstant(), help='When it happened ("" for when it was stored).')
@click.option("--expires", "expire_time", type=_OptionalInstant(), help='When to forget it ("" for never).')
@click.option("--tag", "tags", multiple=True, help="The new tags, all of them; may be given several times.")
@click.option("--no-tags", is_flag=True, help="Take all tags away.")
@click.option("--attribute", "attributes", multiple=True, metavar="KEY=TEXT", help="Set one attribute.")
@click.option("--remove-attribute", "removed", multiple=True, metavar="KEY", help="Take one attribute away.")
@click.option("--etag", default="", help="Only when the memory has not changed since it had this etag.")
@json_option
@client_options
def update_command(
    *,
    connection: ConnectionFlags,
    memory_id: str,
    namespace: str,
    kind: str | None,
    event_time: Timestamp | str | None,
    expire_time: Timestamp | str | None,
    tags: tuple[str, ...],
    no_tags: bool,
    attributes: tuple[str, ...],
    removed: tuple[str, ...],
    etag: str,
    as_json: bool,
    **values: Any,
) -> None:
    """Change what is given of one memory and leave the rest as it is. It keeps its id.

    A new text, speaker, session or time makes it find its cluster anew; flags may be given several times where
    that says so.
    """
    if tags and no_tags:
        raise click.UsageError("--tag and --no-tags exclude each other")
    given = {_FIELDS[flag]: value for flag, value in values.items() if value is not None}
    memory = types_pb2.MemoryInput(tags=tags, **given)
    paths = [*given, *(["tags"] if tags or no_tags else [])]
    if kind is not None:
        memory.kind = _KINDS[kind]
        paths.append("kind")
    for field, time in (("event_time", event_time), ("expire_time", expire_time)):
        if isinstance(time, Timestamp):
            getattr(memory, field).CopyFrom(time)
        if time is not None:
            paths.append(field)
    paths += _attribute_paths(memory, attributes, removed)
    if not paths:
        raise click.UsageError("say what changes: --text, --tag, ...")
    request = pb.UpdateMemoryRequest(
        namespace=namespace, memory_id=memory_id, memory=memory, update_mask=FieldMask(paths=paths), etag=etag
    )

    async def work(client: AsyncClient) -> types_pb2.Memory:
        return (await call(client, client.memory.UpdateMemory, request, connection.timeout_s)).memory

    updated = talk(connection, work)
    if as_json:
        print_document(to_json(updated))
    else:
        click.echo(f"{visible(memory_id)}: updated")


def _attribute_paths(
    memory: types_pb2.MemoryInput, attributes: tuple[str, ...], removed: tuple[str, ...]
) -> list[str]:
    """Set the attributes; returns what the mask names: those that are set, and those that are to go."""
    for attribute in attributes:
        key, equals, text = attribute.partition("=")
        if not equals or not key:
            raise click.UsageError(f'--attribute "{attribute}" is not of the form KEY=TEXT')
        memory.attributes[key].string_value = text
    both = sorted(set(removed) & set(memory.attributes))
    if both:
        raise click.UsageError(f'attribute "{both[0]}" is set and removed')
    return [f"attributes.{key}" for key in dict.fromkeys([*memory.attributes, *removed])]
