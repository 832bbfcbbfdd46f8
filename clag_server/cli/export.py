"""`clag export`: a namespace into a file, of one moment, resumable."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import click
import grpc
from clag.v1 import admin_service_pb2 as pb
from clag.v1 import types_pb2
from clag_client import AsyncClient, ClagError

from clag_server.cli.connection import talk
from clag_server.cli.errors import CliError, ExitCode
from clag_server.cli.filters import filter_options
from clag_server.cli.options import ConnectionFlags, client_options, json_option, namespace_option
from clag_server.cli.output import note, print_document
from clag_server.cli.progress import drawn_count
from clag_server.cli.transfer_files import line_of, read_rows, suffix_of, write_parquet

__all__ = ["export_command"]


@click.command("export")
@namespace_option
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="The file to write; its name ends in .jsonl, .jsonl.gz or .parquet.",
)
@click.option("--embeddings", is_flag=True, help="With the embeddings: an import then needs no model.")
@filter_options
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@json_option
@client_options
def export_command(
    *,
    connection: ConnectionFlags,
    namespace: str,
    out: Path,
    embeddings: bool,
    where: types_pb2.Filter | None,
    force: bool,
    as_json: bool,
) -> ExitCode:
    """Write a namespace, its clusters and memories to a file, as they are at one moment.

    Until it is complete, the file is called FILE.partial; run the same command again after an interruption: it goes
    on where it was, as long as the server keeps the snapshot (an hour by default).
    """
    if out.exists() and not force:
        raise CliError(f"{out} exists; choose another name, or --force", ExitCode.USAGE)
    partial = _Partial(out, suffix_of(out), _scope(namespace, embeddings, where))

    async def work(client: AsyncClient) -> int:
        try:
            return await _fetch(client, namespace, partial, embeddings=embeddings, where=where, quiet=as_json)
        except ClagError as error:
            if error.code is not grpc.StatusCode.OUT_OF_RANGE or not partial.cursor:
                raise
            note("the snapshot of the interrupted export is gone; a new export begins")
            partial.start_over()
            return await _fetch(client, namespace, partial, embeddings=embeddings, where=where, quiet=as_json)

    try:
        rows = talk(connection, work)
        partial.complete()
    except KeyboardInterrupt:
        raise CliError(
            f"interrupted: {partial.rows:,} rows are in {partial.path}; run the same command again to go on there",
            ExitCode.INTERRUPTED,
        ) from None
    except OSError as error:
        raise CliError(f"cannot write {out}: {error.strerror or error}", ExitCode.SERVER) from error
    if as_json:
        print_document({"namespace": namespace, "file": str(out), "rows": rows, "bytes": out.stat().st_size})
    else:
        click.echo(f"{rows:,} rows of {namespace} in {out} ({out.stat().st_size / 1e6:,.1f} MB)")
    return ExitCode.OK


async def _fetch(
    client: AsyncClient,
    namespace: str,
    partial: _Partial,
    *,
    embeddings: bool,
    where: types_pb2.Filter | None,
    quiet: bool,
) -> int:
    if partial.done:
        return partial.rows
    responses = client.export(namespace, cursor=partial.cursor, include_embeddings=embeddings, filter=where)
    with drawn_count("rows", quiet=quiet) as bar:
        async with aclosing(responses):
            async for response in responses:
                partial.add(response)
                bar(partial.rows, response.total)
    return partial.rows


def _scope(namespace: str, embeddings: bool, where: types_pb2.Filter | None) -> str:
    """Digest of what is exported: a partial file of something else is not continued."""
    asked = pb.ExportRequest(namespace=namespace, include_embeddings=embeddings, filter=where)
    return hashlib.sha256(asked.SerializeToString(deterministic=True)).hexdigest()[:16]


@dataclass(slots=True)
class _Partial:
    """The unfinished file, and beside it (`.cursor`) how far it is good and where to go on.

    Batches are appended, then the cursor is written; what lies beyond the noted length is cut off the next time.
    """

    target: Path
    suffix: str
    scope: str
    cursor: str = ""
    rows: int = 0
    length: int = 0
    done: bool = False

    def __post_init__(self) -> None:
        try:
            known = json.loads(self._notes.read_text("utf-8"))
            good = known["scope"] == self.scope and self.path.stat().st_size >= known["length"]
        except (OSError, ValueError, KeyError, TypeError):
            good = False
        if not good:
            self.start_over()
            return
        self.cursor, self.rows, self.length = known["cursor"], known["rows"], known["length"]
        self.done = bool(known["done"])
        os.truncate(self.path, self.length)

    @property
    def path(self) -> Path:
        """The unfinished file."""
        return self.target.with_name(self.target.name + ".partial")

    @property
    def _notes(self) -> Path:
        return self.target.with_name(self.target.name + ".partial.cursor")

    def start_over(self) -> None:
        """Forget what an earlier run wrote."""
        self.cursor, self.rows, self.length, self.done = "", 0, 0, False
        self._notes.unlink(missing_ok=True)
        try:
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))  # memories are private
        except OSError as error:
            raise CliError(f"cannot write {self.path}: {error.strerror}", ExitCode.USAGE) from error

    def add(self, response: pb.ExportResponse) -> None:
        """Append a batch, then note the cursor after it."""
        data = b"".join(line_of(record) for record in response.records)
        if self.suffix == ".jsonl.gz":
            data = gzip.compress(data, 6)  # members of their own: a file of several is one gzip file
        with self.path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self.length += len(data)
        self.rows += len(response.records)
        self.cursor, self.done = response.cursor, not response.cursor
        notes = {"scope": self.scope, "cursor": self.cursor, "rows": self.rows, "length": self.length}
        fresh = self._notes.with_name(self._notes.name + ".new")
        fresh.write_text(json.dumps({**notes, "done": self.done}), "utf-8")
        fresh.replace(self._notes)

    def complete(self) -> None:
        """Give the file its name; Parquet is made of the lines at the end, as it cannot be continued."""
        if self.suffix == ".parquet":
            lines = self.path.with_name(self.path.name + ".jsonl")
            made = self.path.with_name(self.path.name + ".parquet")
            self.path.replace(lines)
            try:
                made.touch(mode=0o600)
                write_parquet((row.record for row in read_rows(lines)), made)
            except BaseException:
                lines.replace(self.path)
                made.unlink(missing_ok=True)
                raise
            made.replace(self.target)
            lines.unlink()
        else:
            self.path.replace(self.target)
        self._notes.unlink(missing_ok=True)
