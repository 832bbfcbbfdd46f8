"""`clag update ID`: change fields of one memory."""

from __future__ import annotations

from typing import Any, Final

import click
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from clag_client import AsyncClient
from google.protobuf.field_mask_pb2 import FieldMask

from clag_server.cli.calls import call
from clag_server.cli.connection import talk
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


@click.command("update")
@click.argument("memory_id")
@namespace_option
@click.option("--text", help="The new text; it is embedded before the command ends.")
@click.option("--speaker", help="Who spoke.")
@click.option("--session", help="Move it to the end of this session.")
@click.option("--task", help="What the agent was doing.")
@click.option("--importance", type=click.FloatRange(0, 1), help="0 to 1.")
@click.option("--tag", "tags", multiple=True, help="The new tags, all of them; may be given several times.")
@click.option("--no-tags", is_flag=True, help="Take all tags away.")
@click.option("--attribute", "attributes", multiple=True, metavar="KEY=TEXT", help="Set one attribute.")
@click.option("--etag", default="", help="Only when the memory has not changed since it had this etag.")
@json_option
@client_options
def update_command(
    *,
    connection: ConnectionFlags,
    memory_id: str,
    namespace: str,
    tags: tuple[str, ...],
    no_tags: bool,
    attributes: tuple[str, ...],
    etag: str,
    as_json: bool,
    **values: Any,
) -> None:
    """Change what is given of one memory and leave the rest as it is. It keeps its id."""
    given = {_FIELDS[flag]: value for flag, value in values.items() if value is not None}
    memory = types_pb2.MemoryInput(tags=tags, **given)
    paths = [*given, *(["tags"] if tags or no_tags else [])]
    for attribute in attributes:
        key, equals, text = attribute.partition("=")
        if not equals or not key:
            raise click.UsageError(f'--attribute "{attribute}" is not of the form KEY=TEXT')
        memory.attributes[key].string_value = text
        paths.append(f"attributes.{key}")
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
