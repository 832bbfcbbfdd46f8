"""`clag operations` and `clag operation ID`, and how commands follow an operation that they began."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import click
from clag.v1 import admin_service_pb2 as pb
from clag.v1 import types_pb2
from clag_client import AsyncClient, ClagError
from rich.table import Table

from clag_server.cli.calls import call, responses
from clag_server.cli.connection import talk
from clag_server.cli.errors import ExitCode
from clag_server.cli.messages import as_json as to_json
from clag_server.cli.options import ConnectionFlags, client_options, json_option
from clag_server.cli.output import console, facts, note, print_document, print_lines, table
from clag_server.cli.safe import one_line
from clag_server.cli.trust import trusted_with
from clag_server.cli.words import enum_word, moment

__all__ = ["RUNNING", "follow", "listed", "operation_command", "operations_command", "outcome", "running_table"]

_PAGE = 1000
_ENDED = frozenset({pb.OPERATION_STATE_SUCCEEDED, pb.OPERATION_STATE_FAILED, pb.OPERATION_STATE_CANCELLED})
RUNNING = frozenset({pb.OPERATION_STATE_PENDING, pb.OPERATION_STATE_RUNNING})
"""States of operations that have not ended."""


@click.command("operations")
@click.option("-n", "--namespace", default="", help="Of this namespace.  [default: all]")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="At most so many.")
@json_option
@client_options
def operations_command(*, connection: ConnectionFlags, namespace: str, limit: int, as_json: bool) -> None:
    """List long-running operations, the newest first. They are kept for seven days after their end."""

    async def work(client: AsyncClient) -> list[pb.Operation]:
        return await listed(client, namespace, connection.timeout_s, limit=limit)

    found = talk(connection, work)
    if as_json:
        print_lines(to_json(one) for one in found)
        return
    console().print(_table(found))


@click.command("operation")
@click.argument("operation_id")
@click.option("--watch", is_flag=True, help="Follow it to its end.")
@click.option("--cancel", is_flag=True, help="Ask it to stop; it may end all the same.")
@json_option
@client_options
def operation_command(
    *, connection: ConnectionFlags, operation_id: str, watch: bool, cancel: bool, as_json: bool
) -> ExitCode:
    """Show one operation. With --watch, exits with 0, or 1 when it was cancelled and 4 when it failed."""

    async def work(client: AsyncClient) -> pb.Operation:
        if cancel:
            asked = pb.CancelOperationRequest(operation_id=operation_id)
            shown = (await call(client, client.admin.CancelOperation, asked, connection.timeout_s)).operation
        else:
            wanted = pb.GetOperationRequest(operation_id=operation_id)
            shown = (await call(client, client.admin.GetOperation, wanted, connection.timeout_s)).operation
        return await follow(client, shown, quiet=as_json) if watch else shown

    shown = talk(connection, work)
    if as_json:
        print_document(to_json(shown))
    else:
        console().print(_facts(shown))
    return outcome(shown) if watch else ExitCode.OK


async def listed(
    client: AsyncClient, namespace: str, timeout_s: float, *, limit: int | None = None
) -> list[pb.Operation]:
    """List operations, the newest first. Raises ClagError.

    Args:
        client: The connection.
        namespace: Whose; of all when empty.
        timeout_s: Longest wait for a page, in seconds.
        limit: At most so many; all when None.
    """
    found: list[pb.Operation] = []
    request = pb.ListOperationsRequest(namespace=namespace, page_size=min(limit or _PAGE, _PAGE))
    while True:
        page = await call(client, client.admin.ListOperations, request, timeout_s)
        found += page.operations
        if not page.next_page_token or (limit is not None and len(found) >= limit):
            return found[:limit]
        request.page_token = page.next_page_token


def running_table(operations: Sequence[pb.Operation]) -> Table:
    """Make a table of operations that have not ended: what they do and how far they are."""
    shown = table("operation", "kind", "namespace", "state", "phase", "progress#")
    for one in operations:
        shown.add_row(
            one_line(one.operation_id),
            enum_word(pb.OperationKind.Name, one.kind),
            one_line(one.namespace),
            enum_word(pb.OperationState.Name, one.state),
            one_line(one.phase),
            _progress(one),
        )
    return shown


async def begun_or_running(
    client: AsyncClient, begin: Awaitable[pb.Operation], *, timeout_s: float
) -> pb.Operation:
    """Return the operation that `begin` begins, or the one like it that runs already, which is noted.

    Raises ClagError for every other refusal.
    """
    try:
        return await begin
    except ClagError as error:
        if error.reason != types_pb2.ERROR_REASON_OPERATION_RUNNING:
            raise
        wanted = pb.GetOperationRequest(operation_id=error.metadata["operation_id"])
        running = (await call(client, client.admin.GetOperation, wanted, timeout_s)).operation
        note(f"operation {running.operation_id} runs already")
        return running


async def follow(client: AsyncClient, begun: pb.Operation, *, quiet: bool) -> pb.Operation:
    """Wait for the end of an operation, with a bar on standard error; returns it as it ended.

    Leaving early does not stop it. Raises ClagError when the server goes away; the operation goes on when that is
    back.
    """
    last = begun
    with _bar(begun, quiet=quiet) as draw:
        request = pb.WatchOperationRequest(operation_id=begun.operation_id)
        async for response in responses(client, client.admin.WatchOperation, request):
            last = response.operation
            draw(last)
    return last


def told(operation: pb.Operation, *, detach: bool, as_json: bool, show: Callable[[pb.Operation], None]) -> ExitCode:
    """Tell of an operation that was followed to its end, or only begun (`detach`); returns the exit code.

    `show` prints the result of one that succeeded, for people.
    """
    if as_json:
        print_document(to_json(operation))
    elif detach:
        name = one_line(operation.operation_id)
        console().print(f"operation {name} began; see `clag operation {name}`")
    elif operation.state == pb.OPERATION_STATE_SUCCEEDED:
        show(operation)
    return ExitCode.OK if detach else outcome(operation)


def outcome(operation: pb.Operation) -> ExitCode:
    """What a command exits with that followed an operation; tells why it did not succeed."""
    if operation.state == pb.OPERATION_STATE_SUCCEEDED:
        return ExitCode.OK
    state = enum_word(pb.OperationState.Name, operation.state)
    note(f"operation {operation.operation_id} {state}: {operation.error.message}")
    return ExitCode.PARTIAL if operation.state == pb.OPERATION_STATE_CANCELLED else ExitCode.SERVER


def _table(operations: list[pb.Operation]) -> Table:
    shown = table("operation", "kind", "namespace", "state", "progress#", "asked for", "ended")
    for one in operations:
        shown.add_row(
            one_line(one.operation_id),
            enum_word(pb.OperationKind.Name, one.kind),
            one_line(one.namespace),
            enum_word(pb.OperationState.Name, one.state),
            _progress(one),
            moment(one.create_time),
            moment(one.end_time),
        )
    return shown


def _facts(operation: pb.Operation) -> Table:
    return facts(
        {
            "operation": one_line(operation.operation_id),
            "kind": enum_word(pb.OperationKind.Name, operation.kind),
            "namespace": one_line(operation.namespace),
            "state": enum_word(pb.OperationState.Name, operation.state),
            "phase": one_line(operation.phase),
            "progress": _progress(operation),
            "error": one_line(operation.error.message),
            "result": _result(operation),
            "asked for": f"{moment(operation.create_time)} UTC",
            "ended": f"{moment(operation.end_time)} UTC" if operation.HasField("end_time") else "",
        }
    )


def _result(operation: pb.Operation) -> str:
    if operation.HasField("reorganize"):
        done = operation.reorganize
        moved = f"{done.memories_moved:,} memories {'would move' if done.dry_run else 'moved'}"
        return f"{moved}, {done.clusters_before:,} clusters before and {done.clusters_after:,} after"
    if operation.HasField("probe"):
        return f"{one_line(operation.probe.model)}, {trusted_with(operation.probe)}"
    if not operation.HasField("reindex"):
        return ""
    return f"{operation.reindex.memories:,} memories, embedded by {one_line(operation.reindex.embedding_model)}"


def _progress(operation: pb.Operation) -> str:
    if not operation.total:
        return f"{operation.done:,}" if operation.done else ""
    return f"{operation.done:,} of {operation.total:,}"


@contextmanager
def _bar(operation: pb.Operation, *, quiet: bool) -> Iterator[Callable[[pb.Operation], None]]:
    """Draw an operation's progress while the block runs; nothing where there is no terminal."""
    shown = console(stderr=True)
    if quiet or not shown.is_terminal or operation.state in _ENDED:
        yield lambda _: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(20),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=shown, transient=True) as bars:
        task = bars.add_task(one_line(operation.phase) or "waiting", total=None)

        def draw(now: pb.Operation) -> None:
            bars.update(
                task, description=one_line(now.phase) or "waiting", completed=now.done, total=now.total or None
            )

        yield draw
