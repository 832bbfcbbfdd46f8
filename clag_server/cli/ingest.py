"""`clag ingest`: memories from JSON Lines into a server, resumable."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Final

import click
import grpc
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from clag_client import AsyncClient, ClagError, Ingestion, RetryPolicy, SourceError

from clag_server.cli.connection import talk
from clag_server.cli.errors import CliError, ExitCode
from clag_server.cli.ingest_source import Source, default_stream_id, open_file
from clag_server.cli.ingest_tally import Tally, drawn
from clag_server.cli.lines import read_lines
from clag_server.cli.options import ConnectionFlags, Seconds, client_options, json_option, namespace_option
from clag_server.cli.output import note, print_document

__all__ = ["ingest_command"]

_LEVELS: Final = {
    "durable": pb.ACK_LEVEL_DURABLE,
    "searchable": pb.ACK_LEVEL_SEARCHABLE,
    "organized": pb.ACK_LEVEL_ORGANIZED,
}

_AWAY: Final = grpc.StatusCode.UNAVAILABLE


@click.command("ingest")
@click.argument("path", metavar="FILE|-")
@namespace_option
@click.option(
    "--ack",
    type=click.Choice(tuple(_LEVELS)),
    default="durable",
    show_default=True,
    help="When a memory counts as done: on disk, found by meaning, or routed and evolved.",
)
@click.option(
    "--stream-id", default="", help="Name of the stream to resume.  [default: made from file and namespace]"
)
@click.option(
    "--reconnect",
    "reconnect_s",
    metavar="SECONDS",
    type=Seconds(),
    default=120.0,
    show_default=True,
    help="How long to look for a server that goes away in the middle.",
)
@click.option("--dry-run", is_flag=True, help="Check the lines here; needs no server and stores nothing.")
@json_option
@client_options
def ingest_command(
    *,
    connection: ConnectionFlags,
    path: str,
    namespace: str,
    ack: str,
    stream_id: str,
    reconnect_s: float,
    dry_run: bool,
    as_json: bool,
) -> ExitCode:
    """Store memories from a file of JSON Lines, or from standard input (-).

    One object a line: text, and optionally id, speaker, session, time, kind, task, importance, tags, attributes,
    supersedes, expires. A bad line is reported and counted as rejected, the others are stored. Run the same command
    again after an interruption: it goes on where it was.
    """
    file = open_file(path)
    tally = Tally(Source(file), quiet=as_json)
    if dry_run:
        return _check(tally, as_json=as_json)
    stream = stream_id or default_stream_id(namespace, path, file)
    total = None
    if path != "-":
        total = sum(1 for _ in read_lines(file))
        file.seek(0)
    run = _Run(namespace, stream, _LEVELS[ack], tally, total, from_pipe=path == "-")
    try:
        finished = talk(connection, run.ingest, retry=RetryPolicy(reconnect_budget_s=reconnect_s))
    except SourceError as error:
        raise CliError(f"{path}: {error}; {run.progress()}", ExitCode.USAGE) from error
    except CliError as error:
        if not run.begun():
            raise
        cause = error.__cause__
        away = error.code is ExitCode.UNREACHABLE and isinstance(cause, ClagError) and cause.code is _AWAY
        told = "the server went away and did not come back" if away else error.message
        raise CliError(f"{told}: {run.progress()}", error.code) from error
    except KeyboardInterrupt:
        raise CliError(f"interrupted: {run.progress()}", ExitCode.INTERRUPTED) from None
    if as_json:
        print_document(run.as_json(finished))
    else:
        click.echo(_summary(finished, tally, ack))
    return ExitCode.PARTIAL if finished.rejected or finished.quarantined else ExitCode.OK


class _Run:
    """One run of an ingestion; it can say at any moment how far it has come."""

    def __init__(
        self,
        namespace: str,
        stream: str,
        level: pb.AckLevel.ValueType,
        tally: Tally,
        total: int | None,
        *,
        from_pipe: bool,
    ) -> None:
        self._namespace = namespace
        self._stream = stream
        self._level = level
        self._tally = tally
        self._total = total
        self._from_pipe = from_pipe
        self._ingestion: Ingestion | None = None

    async def ingest(self, client: AsyncClient) -> pb.IngestFinished:
        """Stream everything in and return the server's counts of the whole stream.

        Without items nothing is sent: a stream makes its namespace.
        """
        if self._total == 0:
            return pb.IngestFinished()
        source = self._tally.source
        items: Iterator[types_pb2.MemoryInput] | AsyncIterator[types_pb2.MemoryInput] = source.items()
        if self._from_pipe:
            await client.server_info()  # a server that is not there is told before the pipe gives its first line
            arriving = source.arriving_items()
            first = await anext(arriving, None)
            if first is None:
                return pb.IngestFinished()
            items = _joined(first, arriving)
        self._ingestion = client.ingest(self._namespace, items, stream_id=self._stream, ack_level=self._level)
        with drawn(self._tally, total=self._total) as bar:
            async with self._ingestion as ingestion:
                async for outcome in ingestion:
                    self._tally.add(outcome)
                    if bar is not None:
                        bar.update(self._before())
                return await ingestion.wait()

    def begun(self) -> bool:
        """Whether the server has opened the stream."""
        return self._ingestion is not None and self._ingestion.opened

    def progress(self) -> str:
        """Say what is safe and how to go on."""
        of = "" if self._total is None else f" of {self._total:,}"
        acked = self._before() + self._tally.acked
        stored = self._ingestion.durable_through if self._ingestion else 0
        safe = f"{acked:,}{of} items are acknowledged"
        if stored > acked:
            safe += f" and {stored:,} stored"
        if self._from_pipe:
            return f"{safe}; to go on, pipe the same lines again with --stream-id {self._stream}"
        return f"{safe}; run the same command again to go on there (stream {self._stream})"

    def as_json(self, finished: pb.IngestFinished) -> dict[str, object]:
        """The run, and the counts of the whole stream, for programs."""
        return {
            "namespace": self._namespace,
            "stream_id": self._stream,
            "resumed_at": self._ingestion.resumed_at if self._ingestion else 1,
            "reconnects": self._ingestion.reconnects if self._ingestion else 0,
            "run": self._tally.as_json(),
            "stream": {
                "created": finished.created,
                "duplicates": finished.duplicates,
                "rejected": finished.rejected,
                "quarantined": finished.quarantined,
            },
        }

    def _before(self) -> int:
        return self._ingestion.resumed_at - 1 if self._ingestion else 0


async def _joined(
    first: types_pb2.MemoryInput, others: AsyncIterator[types_pb2.MemoryInput]
) -> AsyncIterator[types_pb2.MemoryInput]:
    yield first
    async for item in others:
        yield item


def _summary(finished: pb.IngestFinished, tally: Tally, ack: str) -> str:
    items = finished.created + finished.duplicates + finished.rejected
    if not items:
        return "no items: nothing was sent"
    return (
        f"{items:,} items: {finished.created:,} created, {finished.duplicates:,} duplicates, "
        f"{finished.rejected:,} rejected, {finished.quarantined:,} quarantined; in this run {tally.acked:,} "
        f"acknowledged as {ack} in {tally.elapsed_s():.1f} s ({tally.per_second():,.0f}/s)"
    )


def _check(tally: Tally, *, as_json: bool) -> ExitCode:
    """Check the lines by the rules of the contract, without a server."""
    from clag_server.contract.pool import strict_class  # building the rules takes time that only this needs
    from clag_server.contract.violations import violations

    checked = strict_class("clag.v1.MemoryInput")
    seq = 0
    for seq, item in enumerate(tally.source.items(), start=1):
        bad = tally.source.bad.pop(seq, None)
        if bad is not None:
            faults = [(bad.field, bad.reason)]
        else:
            found = violations(checked.FromString(item.SerializeToString()))
            faults = [(one.field, one.description) for one in found]
        tally.rejected += bool(faults)
        for path, reason in faults:
            tally.fail(seq, path, reason)
    if as_json:
        errors = tally.as_json()
        print_document({"items": seq, **{key: errors[key] for key in ("rejected", "errors", "errors_left_out")}})
    else:
        note(f"{seq:,} items, {tally.rejected:,} would be rejected; nothing was stored")
    return ExitCode.PARTIAL if tally.rejected else ExitCode.OK
