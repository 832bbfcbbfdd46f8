"""`clag version`."""

from __future__ import annotations

import platform

import click

import clag_server
from clag_server.cli.options import json_option
from clag_server.cli.output import print_document

__all__ = ["version_command"]


@click.command("version")
@json_option
def version_command(*, as_json: bool) -> None:
    """Show the version of this program. `clag status` shows that of a running server."""
    if as_json:
        print_document(
            {"version": clag_server.__version__, "contract": "clag.v1", "python": platform.python_version()}
        )
    else:
        click.echo(f"clag {clag_server.__version__} (contract clag.v1, Python {platform.python_version()})")
