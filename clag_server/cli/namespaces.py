"""`clag namespaces`: list, create, show, set and delete namespaces."""

from __future__ import annotations

import sys
from typing import Any, Final

import click
from clag.v1 import admin_service_pb2 as pb
from clag_client import AsyncClient
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask

from clag_server.cli.calls import call
from clag_server.cli.connection import talk
from clag_server.cli.errors import ExitCode
from clag_server.cli.messages import as_json as to_json
from clag_server.cli.messages import seconds
from clag_server.cli.operations import follow, outcome
from clag_server.cli.options import ConnectionFlags, client_options, json_option
from clag_server.cli.output import console, facts, print_document, print_lines, table
from clag_server.cli.safe import one_line, shorten, visible
from clag_server.cli.words import date, enum_word, moment

__all__ = ["namespaces_command"]

_UNSET: Final = "default"
_PURPOSE_CHARS: Final = 50
_DAY_S: Final = 86_400
_SPANS: Final = {
    "time_to_live": (1, 'at least a second and at most 36525 days (a hundred years); "" keeps them for ever'),
    "archive_after": (
        3_600,
        (
            "at least an hour (0.042 days) and at most 36525 days (a hundred years, as good as never); "
            '"" goes back to the server\'s default (organize.archive_after_days)'
        ),
    ),
}
"""Of flags that are a number of days: the least in seconds, and what is allowed in words."""

_MOST_S: Final = 36_525 * _DAY_S
_UNITS: Final = {"episode": pb.ROUTING_UNIT_EPISODE, "memory": pb.ROUTING_UNIT_MEMORY}


@click.group("namespaces")
def namespaces_command() -> None:
    """List, create, show, set or delete namespaces."""


@namespaces_command.command("list")
@json_option
@client_options
def list_command(*, connection: ConnectionFlags, as_json: bool) -> None:
    """List all namespaces by name."""

    async def work(client: AsyncClient) -> list[pb.Namespace]:
        found: list[pb.Namespace] = []
        request = pb.ListNamespacesRequest(page_size=1000)
        while True:
            page = await call(client, client.admin.ListNamespaces, request, connection.timeout_s)
            found += page.namespaces
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    found = talk(connection, work)
    if as_json:
        print_lines(to_json(one) for one in found)
        return
    shown = table("namespace", "created", "embedder", "numbers#", "purpose", "")
    for one in found:
        shown.add_row(
            one_line(one.namespace),
            date(one.create_time),
            one_line(one.embedding_model),
            str(one.embedding_dimension),
            shorten(one.settings.purpose, _PURPOSE_CHARS),
            "is being deleted" if one.deleting else "",
        )
    console().print(shown)


def _settings_options(command: Any) -> Any:
    for option in reversed(
        (
            click.option("--purpose", help="What the agent is for, in a sentence."),
            click.option(
                "--time-to-live",
                metavar="DAYS",
                help='Forget memories without an expire time after so many days ("" for never).',
            ),
            click.option(
                "--archive-after",
                metavar="DAYS",
                help='Archive clusters idle for so many days ("" for the default).',
            ),
            click.option(
                "--routing-unit", type=click.Choice([*_UNITS, ""]), help="What a routing decision is about."
            ),
            click.option(
                "--auto-reorganize",
                type=click.Choice(["yes", "no", ""]),
                help='Whether re-organization starts by itself ("" for the default).',
            ),
        )
    ):
        command = option(command)
    return command


@namespaces_command.command("create")
@click.argument("namespace")
@_settings_options
@json_option
@client_options
def create_command(*, connection: ConnectionFlags, namespace: str, as_json: bool, **flags: str | None) -> None:
    """Create a namespace; the first ingest does so too, where the server's settings allow it."""
    request = pb.CreateNamespaceRequest(namespace=namespace, settings=_settings(flags)[0])

    async def work(client: AsyncClient) -> pb.Namespace:
        return (await call(client, client.admin.CreateNamespace, request, connection.timeout_s)).namespace

    _show(talk(connection, work), as_json=as_json)


@namespaces_command.command("show")
@click.argument("namespace")
@json_option
@client_options
def show_command(*, connection: ConnectionFlags, namespace: str, as_json: bool) -> None:
    """Show a namespace and its settings."""
    request = pb.GetNamespaceRequest(namespace=namespace)

    async def work(client: AsyncClient) -> pb.Namespace:
        return (await call(client, client.admin.GetNamespace, request, connection.timeout_s)).namespace

    _show(talk(connection, work), as_json=as_json)


@namespaces_command.command("set")
@click.argument("namespace")
@_settings_options
@json_option
@client_options
def set_command(*, connection: ConnectionFlags, namespace: str, as_json: bool, **flags: str | None) -> None:
    """Change settings of a namespace; an empty value goes back to the server's default."""
    settings, paths = _settings(flags)
    if not paths:
        raise click.UsageError("say what to set: --purpose, --time-to-live, ...")
    request = pb.UpdateNamespaceRequest(namespace=namespace, settings=settings, update_mask=FieldMask(paths=paths))

    async def work(client: AsyncClient) -> pb.Namespace:
        return (await call(client, client.admin.UpdateNamespace, request, connection.timeout_s)).namespace

    _show(talk(connection, work), as_json=as_json)


@namespaces_command.command("delete")
@click.argument("namespace")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@client_options
def delete_command(*, connection: ConnectionFlags, namespace: str, yes: bool, as_json: bool) -> ExitCode:
    """Delete a namespace and all that is in it, and wait for the end. Asks first, where there is a terminal."""
    if not yes:
        _confirm(connection, namespace)
    request = pb.DeleteNamespaceRequest(namespace=namespace)

    async def work(client: AsyncClient) -> pb.Operation:
        begun = await call(client, client.admin.DeleteNamespace, request, connection.timeout_s)
        return await follow(client, begun.operation, quiet=as_json)

    ended = talk(connection, work)
    if as_json:
        print_document(to_json(ended))
    elif ended.state == pb.OPERATION_STATE_SUCCEEDED:
        console().print(f"{one_line(namespace)}: deleted")
    return outcome(ended)


def _confirm(connection: ConnectionFlags, namespace: str) -> None:
    """Ask whether a namespace that is there is to be deleted; aborts when not."""

    async def work(client: AsyncClient) -> None:
        await call(
            client, client.admin.GetNamespace, pb.GetNamespaceRequest(namespace=namespace), connection.timeout_s
        )

    talk(connection, work)
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask whether to delete it: say --yes")
    click.confirm(f'Delete namespace "{one_line(namespace)}" and all its memories?', abort=True, err=True)


def _settings(flags: dict[str, str | None]) -> tuple[pb.NamespaceSettings, list[str]]:
    """Return the settings that flags give a value, and the paths of all that were given."""
    settings = pb.NamespaceSettings(purpose=flags["purpose"] or "")
    unit = flags["routing_unit"]
    if unit:
        settings.routing_unit = _UNITS[unit]
    if flags["auto_reorganize"]:
        settings.auto_reorganize = flags["auto_reorganize"] == "yes"
    for field, flag in (("default_time_to_live", "time_to_live"), ("archive_after", "archive_after")):
        if text := flags[flag]:
            getattr(settings, field).CopyFrom(_days(text, flag))
    names = {"time_to_live": "default_time_to_live"}
    return settings, [names.get(flag, flag) for flag, value in flags.items() if value is not None]


def _days(text: str, flag: str) -> Duration:
    called = f"--{flag.replace('_', '-')}"
    try:
        span_s = float(text) * _DAY_S
    except ValueError:
        raise click.UsageError(f'{called}: "{visible(text)}" is not a number of days') from None
    least_s, allowed = _SPANS[flag]
    if not least_s <= span_s <= _MOST_S:
        raise click.UsageError(f"{called}: {visible(text)} days is out of range: {allowed}")
    span = Duration()
    span.FromNanoseconds(round(span_s * 1e9))
    return span


def _show(namespace: pb.Namespace, *, as_json: bool) -> None:
    if as_json:
        print_document(to_json(namespace))
        return
    settings = namespace.settings
    reorganize = ("yes" if settings.auto_reorganize else "no") if settings.HasField("auto_reorganize") else _UNSET
    unit = enum_word(pb.RoutingUnit.Name, settings.routing_unit) if settings.routing_unit else _UNSET
    console().print(
        facts(
            {
                "namespace": one_line(namespace.namespace) + (" (is being deleted)" if namespace.deleting else ""),
                "embedder": f"{one_line(namespace.embedding_model)}, {namespace.embedding_dimension} numbers",
                "purpose": one_line(settings.purpose),
                "time to live": _in_days(settings, "default_time_to_live", "for ever"),
                "archive after": _in_days(settings, "archive_after", _UNSET),
                "routing unit": unit,
                "auto-reorganize": reorganize,
                "created": f"{moment(namespace.create_time)} UTC",
                "changed": f"{moment(namespace.update_time)} UTC",
                "etag": one_line(namespace.etag),
            }
        )
    )


def _in_days(settings: pb.NamespaceSettings, field: str, unset: str) -> str:
    if not settings.HasField(field):  # type: ignore[arg-type]
        return unset
    return f"{seconds(getattr(settings, field)) / _DAY_S:g} days"
