"""`clag config`: the effective settings and where each came from."""

from __future__ import annotations

from pathlib import Path

import click

from clag_server.cli.errors import CliError, ExitCode
from clag_server.cli.options import json_option, settings_options
from clag_server.cli.output import console, print_lines, table
from clag_server.cli.safe import visible
from clag_server.settings import Settings, SettingsError, effective, load

__all__ = ["config_command", "load_settings"]


def load_settings(flags: dict[str, object], config: Path | None) -> Settings:
    """Read the settings.

    Raises:
        CliError: With every fault, joined to one line.
    """
    try:
        return load(flags, config=config)
    except SettingsError as error:
        raise CliError("; ".join(error.lines), ExitCode.USAGE) from error


@click.command("config")
@settings_options
@json_option
def config_command(*, flags: dict[str, object], config: Path | None, as_json: bool) -> ExitCode:
    """Show every setting, its value and where it came from.

    It takes the flags of `clag serve` and shows what `serve` would use. Flags win over the environment
    (CLAG_SECTION__KEY), which wins over the settings file, which wins over the defaults. Secrets are files and
    never shown.
    """
    settings = load_settings(flags, config)
    rows = effective(settings)
    if as_json:
        print_lines({"key": row.key, "value": row.value, "origin": row.origin} for row in rows)
        return _usable(settings)
    shown = table("setting", "value", "from")
    for row in rows:
        shown.add_row(visible(row.key), visible(row.value), visible(row.origin), style=_style(row.origin))
    console().print(shown)
    return _usable(settings)


def _usable(settings: Settings) -> ExitCode:
    """Say of a script that is not there what `clag serve` would say. Raises CliError, after all was shown."""
    models = settings.models
    if models.backend == "scripted" and models.script is not None and not models.script.is_file():
        where = settings.origin("models.script")
        raise CliError(
            f'models.script: there is no file "{visible(str(models.script))}" (from {where}), and with '
            'models.backend "scripted" the server answers from it',
            ExitCode.USAGE,
        )
    return ExitCode.OK


def _style(origin: str) -> str | None:
    return "dim" if origin == "default" else None
