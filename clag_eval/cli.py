"""`clag-eval run | report | diff | case`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
from clag_client import ClagError, SourceError

from clag_eval.case import chosen_question, study, written
from clag_eval.data import DataError, shuffled
from clag_eval.diff import compare
from clag_eval.markdown import markdown
from clag_eval.options import Asked, asked_options
from clag_eval.plots import draw
from clag_eval.progress import shown_progress
from clag_eval.report import document
from clag_eval.rows import Kept
from clag_eval.running import RunOptions, run
from clag_eval.stored import EvaluationError

__all__ = ["cli", "main"]

_FAILED: Final = 1
_INTERRUPTED: Final = 130
_FILE: Final = click.Path(dir_okay=False, path_type=Path)
_READ: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER: Final = click.Path(file_okay=False, path_type=Path)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Measure what a CLAG server finds and answers, on your own copy of public data."""


@cli.command("run")
@asked_options
@click.option("--answers", is_flag=True, help="Have the language model answer from what each method found.")
@click.option("--shuffle", type=int, metavar="SEED", help="Control: memories in random order, without sessions.")
@click.option("--json", "target", type=_FILE, required=True, help="File to write the result to.")
@click.option("--markdown", "page", type=_FILE, help="File to write the tables to.")
@click.option("--plots", type=_FOLDER, help="Folder to draw plots into.")
@click.option("--fresh", is_flag=True, help="Start again where an earlier run was broken off.")
def run_command(
    *,
    asked: Asked,
    answers: bool,
    shuffle: int | None,
    target: Path,
    page: Path | None,
    plots: Path | None,
    fresh: bool,
) -> None:
    """Evaluate methods side by side and write the result as JSON.

    Finished pools are kept beside the JSON file, in FILE.partial, until the run is complete: the same command goes
    on where it was broken off.
    """
    if answers and asked.slm == "never":
        raise click.UsageError("--answers needs a language model: use --slm auto or --slm always")
    if not os.access(target.parent, os.W_OK) or (target.exists() and not os.access(target, os.W_OK)):
        raise click.BadParameter(f"{target} cannot be written", param_hint="'--json'")
    started = time.monotonic()
    data = asked.data if shuffle is None else shuffled(asked.data, shuffle)
    made_with: dict[str, Any] = {
        "data": data.name,
        "pools": len(data.pools),
        "memories": data.memories,
        "questions": data.questions,
        "left_out": data.left_out,
        "slm_use": asked.slm,
        "model": asked.server.slm,
        "shuffle": shuffle,
        "answers": answers,
        "budgets": list(asked.budgets.all),
        "answer_tokens": asked.budgets.answer,
        "window_tokens": asked.budgets.window,
        "settings": dict(asked.server.settings),
    }
    kept = Kept(target.with_name(f"{target.name}.partial"), made_with)
    if fresh:
        kept.discard()
    kept.open()
    options = RunOptions(asked.methods, asked.budgets, asked.slm_use, answers)
    with shown_progress() as progress:
        facts = asyncio.run(run(data, options, asked.server, kept, progress))
    if not kept.blocks:
        raise EvaluationError("nothing was measured: " + "; ".join(facts.notes))
    seconds = round(time.monotonic() - started, 1)
    made = document({**made_with, "seconds": seconds}, facts, kept.blocks, order=asked.methods)
    target.write_text(json.dumps(made, ensure_ascii=False, indent=1) + "\n", "utf-8")
    kept.discard()
    _pages(made, page, plots, show=True)


@cli.command("report")
@click.argument("source", type=_READ)
@click.option("--markdown", "page", type=_FILE, help="File to write the tables to; else they are printed.")
@click.option("--plots", type=_FOLDER, help="Folder to draw plots into.")
def report_command(*, source: Path, page: Path | None, plots: Path | None) -> None:
    """Write tables and plots of a result again."""
    _pages(_read(source), page, plots, show=page is None)


@cli.command("diff")
@click.argument("before", type=_READ)
@click.argument("after", type=_READ)
@click.option("--json", "target", type=_FILE, help="File to write the differences to.")
def diff_command(*, before: Path, after: Path, target: Path | None) -> None:
    """Compare two results over the questions that both have: AFTER less BEFORE.

    Differences come with their 95% interval; those that leave out zero are marked with a star.
    """
    shown, rows = compare(_read(before), _read(after))
    click.echo(shown)
    if target is not None:
        target.write_text(json.dumps(rows, ensure_ascii=False, indent=1) + "\n", "utf-8")


@cli.command("case")
@asked_options
@click.option("--question", default="", help="Id of the question; else the first with two memories of evidence.")
@click.option("--markdown", "page", type=_FILE, help="File to write the page to; else it is printed.")
def case_command(*, asked: Asked, question: str, page: Path | None) -> None:
    """Follow one question: clusters picked and pruned, what each method found, what was answered.

    It is asked of the first pool, or of the one that --pool names.
    """
    pool = asked.data.pools[0]
    case = asyncio.run(
        study(
            asked.data.name,
            pool,
            chosen_question(pool, question),
            asked.methods,
            asked.server,
            slm_use=asked.slm_use,
            budgets=asked.budgets,
        )
    )
    if page is None:
        click.echo(written(case))
    else:
        page.write_text(written(case), "utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        0; 1 when the evaluation failed; 2 when it was asked for wrongly; 130 when it was interrupted.
    """
    # Told to end, it ends the servers that it started, as it does when it is interrupted.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        cli.main(args=arguments, prog_name="clag-eval", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except DataError as error:
        click.echo(f"clag-eval: {error}", err=True)
        return click.UsageError.exit_code
    except (EvaluationError, ClagError, SourceError, OSError) as error:
        click.echo(f"clag-eval: {error}", err=True)
        return _FAILED
    except (click.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _pages(made: dict[str, Any], page: Path | None, plots: Path | None, *, show: bool) -> None:
    drawn = draw(made, plots) if plots is not None else []
    start = page.resolve().parent if page is not None else Path.cwd()
    text = markdown(made, plots=[Path(os.path.relpath(path.resolve(), start)) for path in drawn])
    if page is not None:
        page.write_text(text, "utf-8")
    if show:
        click.echo(text)


def _read(path: Path) -> dict[str, Any]:
    try:
        made: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: not JSON ({error.msg}, line {error.lineno})") from None
    if not isinstance(made, dict) or made.get("tool") != "clag-eval":
        raise DataError(f"{path} is not a result of clag-eval")
    return made
