"""`clag backup` and `clag restore`: the whole system of record in one file, online; and back into a directory."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path
from typing import Final

import click

from clag_server.cli.errors import CliError, ExitCode
from clag_server.cli.options import json_option
from clag_server.cli.output import print_document
from clag_server.cli.progress import drawn_count
from clag_server.types.errors import StorageFailed

__all__ = ["backup_command", "restore_command"]

CATALOG: Final = "catalog.db"
_PATH = click.Path(path_type=Path)
_debug = click.option("--debug", is_flag=True, expose_value=False, help="On an error, show the traceback too.")


@click.command("backup")
@click.option("--data-dir", type=_PATH, required=True, help="The data directory; a server may be running on it.")
@click.option("--out", type=_PATH, required=True, help="The file to write; it must not exist.")
@json_option
@_debug
def backup_command(*, data_dir: Path, out: Path, as_json: bool) -> ExitCode:
    """Copy the system of record as it is at one moment, while a server goes on writing.

    The copy holds every namespace with its embeddings; the vector index is made again from it.
    """
    from clag_server.catalog.copies import backup_file

    source = data_dir.expanduser() / CATALOG
    if not source.is_file():
        raise CliError(f"{data_dir} is no data directory: it has no {CATALOG}", ExitCode.USAGE)
    if os.path.lexists(out.expanduser()):
        raise CliError(f"{out} exists; choose another name: a backup replaces no file", ExitCode.USAGE)
    try:
        with drawn_count("pages", quiet=as_json) as bar:
            backup_file(source, out.expanduser(), bar)
    except StorageFailed as failed:
        raise CliError(str(failed), ExitCode.SERVER) from failed
    size = out.expanduser().stat().st_size
    if as_json:
        print_document({"file": str(out), "bytes": size})
    else:
        click.echo(f"{out}: {size / 1e6:,.1f} MB, checked")
    return ExitCode.OK


@click.command("restore")
@click.argument("path", metavar="FILE", type=_PATH)
@click.option(
    "--data-dir", type=_PATH, required=True, help="The data directory to make; it must be empty or missing."
)
@json_option
@_debug
def restore_command(*, path: Path, data_dir: Path, as_json: bool) -> ExitCode:
    """Put a backup into an empty data directory. The next `clag serve` on it rebuilds the vector index."""
    from clag_server.catalog.copies import backup_file, check_file

    target = data_dir.expanduser()
    source = path.expanduser()
    if not source.is_file():
        raise CliError(f"{path} does not exist", ExitCode.USAGE)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CliError(f"{data_dir} is not empty: restore into a directory of its own", ExitCode.USAGE)
    try:
        check_file(source)
        made = not target.exists()
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with drawn_count("pages", quiet=as_json) as bar:
                backup_file(source, target / CATALOG, bar)
            check_file(target / CATALOG)
            memories, namespaces = _counts(target / CATALOG)
        except BaseException:
            if made:
                shutil.rmtree(target, ignore_errors=True)
            else:
                (target / CATALOG).unlink(missing_ok=True)
            raise
    except StorageFailed as failed:
        raise CliError(f"{path} cannot be restored: {failed}", ExitCode.USAGE) from failed
    except OSError as error:
        raise CliError(f"cannot write {data_dir}: {error.strerror}", ExitCode.SERVER) from error
    if as_json:
        print_document({"data_dir": str(data_dir), "namespaces": namespaces, "memories": memories})
    else:
        click.echo(
            f"{memories:,} memories of {namespaces:,} namespaces restored; next: clag serve --data-dir {data_dir}"
        )
    return ExitCode.OK


def _counts(file: Path) -> tuple[int, int]:
    connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)
    try:
        row = connection.execute("SELECT coalesce(sum(memories), 0), count(*) FROM namespaces").fetchone()
    finally:
        connection.close()
    return int(row[0]), int(row[1])
