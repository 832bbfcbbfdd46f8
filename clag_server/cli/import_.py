"""`clag import`: exported rows, of this system or another, into a namespace, resumable."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
from clag.v1 import admin_service_pb2 as pb
from clag_client import AsyncClient

from clag_server.cli.connection import talk
from clag_server.cli.errors import CliError, ExitCode
from clag_server.cli.import_tally import ImportTally
from clag_server.cli.options import ConnectionFlags, client_options, json_option, namespace_option
from clag_server.cli.output import print_document
from clag_server.cli.progress import drawn_count
from clag_server.cli.transfer_files import FileRow, UnreadableFile, read_rows, suffix_of

__all__ = ["import_command"]

_SYSTEMS: Final = ("mem0", "langgraph", "graphiti")
_CONFLICTS: Final = {"keep": pb.IMPORT_CONFLICT_KEEP, "replace": pb.IMPORT_CONFLICT_REPLACE}
_DIGEST_BYTES: Final = 1 << 20


@click.command("import")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@namespace_option
@click.option("--from", "system", type=click.Choice(_SYSTEMS), help="The file is an export of this system.")
@click.option("--keep-organization", is_flag=True, help="Take over clusters, episodes, annotations and links.")
@click.option(
    "--on-conflict",
    type=click.Choice(tuple(_CONFLICTS)),
    default="keep",
    show_default=True,
    help="What happens to a memory whose id is there.",
)
@click.option("--stream-id", default="", help="Name of the import to resume.  [default: made from the file]")
@click.option("--again", is_flag=True, help="Load the file once more, though an earlier import of it has finished.")
@json_option
@client_options
def import_command(
    *,
    connection: ConnectionFlags,
    path: Path,
    namespace: str,
    system: str | None,
    keep_organization: bool,
    on_conflict: str,
    stream_id: str,
    again: bool,
    as_json: bool,
) -> ExitCode:
    """Load an exported file (.jsonl, .jsonl.gz, .parquet) into a namespace, or the export of another system.

    Ids, times, attributes and tags stay; without --keep-organization everything is organized anew. A bad row is
    reported and counted as rejected, the others are stored; of a damaged file, what can be read. Run the same
    command again after an interruption: it goes on where it was.
    """
    if system is None:
        suffix_of(path)
    if system is not None and keep_organization:
        raise CliError("--keep-organization needs an export of this system", ExitCode.USAGE)
    if again and stream_id:
        raise CliError("--again gives the import a new name: leave out --stream-id", ExitCode.USAGE)
    known = stream_id or _stream_id(path, system or "", on_conflict, keep_organization=keep_organization)
    stream = f"again-{uuid.uuid4().hex}" if again else known
    tally = ImportTally(quiet=as_json)

    async def work(client: AsyncClient) -> pb.ImportFinished:
        with drawn_count("rows", quiet=as_json) as bar:

            def hear(durable: int, rejections: list[pb.ImportRejection]) -> None:
                tally.hear(durable, rejections)
                bar(durable, 0)

            return await client.import_records(
                namespace,
                tally.records(_rows(path, system)),
                stream_id=stream,
                on_conflict=_CONFLICTS[on_conflict],
                keep_organization=keep_organization,
                on_progress=hear,
            )

    try:
        finished = talk(connection, work)
    except KeyboardInterrupt:
        go_on = f"run it with --stream-id {stream} in place of --again" if again else "run the same command again"
        raise CliError(
            f"interrupted: {tally.durable:,} rows are stored; {go_on} to go on there", ExitCode.INTERRUPTED
        ) from None
    if as_json:
        print_document({"namespace": namespace, "stream_id": stream, **tally.as_json(finished)})
    elif tally.durable or tally.damage is None:
        name = f"the name {stream_id}" if stream_id else "this file's name"
        click.echo(tally.summary(finished, namespace, name))
    if tally.damage is not None:
        stored = finished.imported + finished.duplicates
        told = f"{tally.damage.message}; of the rows before that {stored:,} are stored"
        raise CliError(told if tally.durable else tally.damage.message, ExitCode.USAGE)
    return ExitCode.PARTIAL if finished.rejected else ExitCode.OK


def _rows(path: Path, system: str | None) -> Iterator[FileRow]:
    """Read the rows of a file. Raises UnreadableFile where it cannot be read on, CliError for another kind."""
    if system is None:
        yield from read_rows(path)
        return
    from clag_server.foreign import OtherKind, read

    try:
        data = path.read_bytes()
    except OSError as error:
        raise UnreadableFile(path, error.strerror or str(error)) from error
    try:
        for row in read(system, data):
            if row.cut:
                raise UnreadableFile(path, f"{f'item {row.item}' if row.item else f'line {row.line}'}: {row.error}")
            yield FileRow(row.line, row.record or pb.ExportRecord(), row.error, row.item)
    except OtherKind as other:
        raise CliError(f"{path} {other}: {_advice(other.system)}", ExitCode.USAGE) from other


def _advice(system: str) -> str:
    if system in _SYSTEMS:
        return f"use --from {system}"
    return "import it without --from" if system else "--from reads JSON"


def _stream_id(path: Path, *how: str, keep_organization: bool) -> str:
    """Name an import by the file's content and how it is taken."""
    digest = hashlib.sha256("\0".join((*how, str(keep_organization))).encode())
    try:
        with path.open("rb") as file:
            while piece := file.read(_DIGEST_BYTES):
                digest.update(piece)
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}", ExitCode.USAGE) from error
    return f"file-{digest.hexdigest()[:40]}"
