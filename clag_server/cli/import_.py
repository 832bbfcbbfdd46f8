"""`clag import`: exported rows, of this system or another, into a namespace, resumable."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import click
from clag.v1 import admin_service_pb2 as pb
from clag_client import AsyncClient

from clag_server.cli.connection import talk
from clag_server.cli.errors import CliError, ExitCode
from clag_server.cli.options import ConnectionFlags, client_options, json_option, namespace_option
from clag_server.cli.output import note, print_document
from clag_server.cli.progress import drawn_count
from clag_server.cli.terms import in_words
from clag_server.cli.transfer_files import FileRow, read_rows, suffix_of

__all__ = ["import_command"]

_SYSTEMS: Final = ("mem0", "langgraph", "graphiti")
_CONFLICTS: Final = {"keep": pb.IMPORT_CONFLICT_KEEP, "replace": pb.IMPORT_CONFLICT_REPLACE}
_TOLD_ERRORS: Final = 20
_KEPT_ERRORS: Final = 1000
_DIGEST_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class _LineError:
    line: int
    seq: int
    field: str
    message: str


@dataclass(slots=True)
class _Tally:
    """What became of the rows of this run."""

    quiet: bool
    lines: dict[int, int] = field(default_factory=dict)
    """Sequence number -> line, where they differ by more than was seen before; see `line`."""
    bad: dict[int, str] = field(default_factory=dict)
    errors: list[_LineError] = field(default_factory=list)
    count: int = 0
    durable: int = 0
    _shift: int = 0

    def sent(self, seq: int, row: FileRow) -> None:
        """Remember a row that is read."""
        if row.line - seq != self._shift:
            self._shift = row.line - seq
            self.lines[seq] = self._shift
        if row.error:
            self.bad[seq] = row.error

    def line(self, seq: int) -> int:
        """The line of a row."""
        before = [first for first in self.lines if first <= seq]
        return seq + (self.lines[max(before)] if before else 0)

    def reject(self, rejection: pb.ImportRejection) -> None:
        """Keep a rejection, and tell it unless there were many."""
        message = self.bad.pop(rejection.seq, "") or in_words(rejection.error.message)
        path = "" if message != in_words(rejection.error.message) else rejection.error.field
        error = _LineError(self.line(rejection.seq), rejection.seq, path, message)
        self.count += 1
        if len(self.errors) < _KEPT_ERRORS:
            self.errors.append(error)
        if not self.quiet and self.count <= _TOLD_ERRORS:
            note(f"line {error.line}: {f'{path}: ' if path else ''}{message}")
        if not self.quiet and self.count == _TOLD_ERRORS:
            note("more such lines are counted only (the first 1,000 are in the output of --json)")


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
    as_json: bool,
) -> ExitCode:
    """Load an exported file (.jsonl, .jsonl.gz, .parquet) into a namespace, or the export of another system.

    Ids, times, attributes and tags stay; without --keep-organization everything is organized anew. A bad row is
    reported and counted as rejected, the others are stored. Run the same command again after an interruption: it
    goes on where it was.
    """
    if system is None:
        suffix_of(path)
    if system is not None and keep_organization:
        raise CliError("--keep-organization needs an export of this system", ExitCode.USAGE)
    stream = stream_id or _stream_id(path, system or "", on_conflict, keep_organization=keep_organization)
    tally = _Tally(quiet=as_json)

    async def work(client: AsyncClient) -> pb.ImportFinished:
        with drawn_count("rows", quiet=as_json) as bar:

            def hear(durable: int, rejections: list[pb.ImportRejection]) -> None:
                tally.durable = durable
                for rejection in rejections:
                    tally.reject(rejection)
                bar(durable, 0)

            return await client.import_records(
                namespace,
                _records(_rows(path, system), tally),
                stream_id=stream,
                on_conflict=_CONFLICTS[on_conflict],
                keep_organization=keep_organization,
                on_progress=hear,
            )

    try:
        finished = talk(connection, work)
    except KeyboardInterrupt:
        raise CliError(
            f"interrupted: {tally.durable:,} rows are stored; run the same command again to go on there",
            ExitCode.INTERRUPTED,
        ) from None
    if as_json:
        print_document(_document(namespace, stream, finished, tally))
    else:
        click.echo(
            f"{finished.imported:,} rows imported into {namespace}, {finished.duplicates:,} were there, "
            f"{finished.rejected:,} rejected"
        )
    return ExitCode.PARTIAL if finished.rejected else ExitCode.OK


def _rows(path: Path, system: str | None) -> Iterator[FileRow]:
    if system is None:
        yield from read_rows(path)
        return
    from clag_server.foreign import read

    try:
        data = path.read_bytes()
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}", ExitCode.USAGE) from error
    for row in read(system, data):
        yield FileRow(row.line, row.record or pb.ExportRecord(), row.error)


def _records(rows: Iterator[FileRow], tally: _Tally) -> Iterator[pb.ExportRecord]:
    """Bad rows go as empty records, which the server rejects: so its counts and numbers include them."""
    for seq, row in enumerate(rows, start=1):
        tally.sent(seq, row)
        yield row.record


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


def _document(namespace: str, stream: str, finished: pb.ImportFinished, tally: _Tally) -> dict[str, object]:
    return {
        "namespace": namespace,
        "stream_id": stream,
        "imported": finished.imported,
        "duplicates": finished.duplicates,
        "rejected": finished.rejected,
        "errors": [asdict(error) for error in tally.errors],
        "errors_left_out": tally.count - len(tally.errors),
    }
