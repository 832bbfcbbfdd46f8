"""`clag serve`: the server in the foreground, its models fetched first."""

from __future__ import annotations

from pathlib import Path

import click

from clag_server.cli.config import load_settings
from clag_server.cli.errors import ExitCode
from clag_server.cli.model_cache import ensure_models
from clag_server.cli.options import settings_options
from clag_server.ops.garbage import collected_when_open

__all__ = ["serve_command"]

_MODEL_MISSING, _STORAGE = 4, 5
"""What `clag_server.server.serve` returns for these; the command line has its own numbers (docs/cli.md)."""


@click.command("serve")
@click.option("--offline", is_flag=True, help="Never fetch a model; end with 5 when one is missing.")
@settings_options
def serve_command(*, flags: dict[str, object], config: Path | None, offline: bool) -> int:
    """Run the memory server until SIGTERM or Ctrl-C.

    Models that are missing are fetched first. Every setting can also come from a file or the environment; `clag
    config` shows them all.
    """
    settings = load_settings(flags, config)
    ensure_models(settings, offline=offline)
    with collected_when_open():
        from clag_server.server import serve  # the whole server: not needed to say that a setting is wrong

        status = serve(settings)
    return {_MODEL_MISSING: ExitCode.MODEL_MISSING, _STORAGE: ExitCode.SERVER}.get(status, status)
