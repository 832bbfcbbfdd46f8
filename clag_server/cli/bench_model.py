"""`clag bench-model NAME`: what a language model does here, or on a server elsewhere, and what to set for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click

from clag_server.cli.config import load_settings
from clag_server.cli.errors import CliError, ExitCode
from clag_server.cli.model_cache import missing_model
from clag_server.cli.options import Seconds, json_option, model_options
from clag_server.cli.output import console, facts, note, print_document, table
from clag_server.cli.safe import visible
from clag_server.models.api import EngineState, ModelError
from clag_server.models.specs import StoreError
from clag_server.ops.logging import configure_logging

if TYPE_CHECKING:
    from clag_server.cli.bench_measure import Latency, Measured, Plan
    from clag_server.models.api import EngineStatus, SlmEngine
    from clag_server.models.config import ModelsConfig

__all__ = ["Advice", "advise", "bench_model_command"]

_POLL_S: Final = 0.05
_EPISODE: Final = 14
"""Memories of one routing decision in chat (DESIGN section 5)."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Advice:
    """What to set, and why. An empty setting is advice without one."""

    setting: str
    value: str
    why: str


@click.command("bench-model")
@click.argument("name")
@click.option("--url", default="", help="The model runs on the OpenAI-compatible server at this address.")
@click.option(
    "--api-key-file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Key for that server."
)
@click.option("--quick", is_flag=True, help="Shorter stages: under a minute with the bundled model.")
@click.option(
    "--seconds",
    type=Seconds(),
    help="Length of each stage.  [default: 15, with --quick 5]",
)
@model_options
@json_option
def bench_model_command(
    *,
    name: str,
    url: str,
    api_key_file: Path | None,
    quick: bool,
    seconds: float | None,
    flags: dict[str, object],
    config: Path | None,
    as_json: bool,
) -> None:
    """Measure a language model and say what to set for it.

    NAME is a known model, a hub name, a folder or a .gguf file that is in the model cache; with --url, its name on
    that server. Choices are decisions among five clusters, generations are short structured annotations, and
    interactive calls are measured alone and while 32 bulk generations wait.
    """
    from clag_server.cli.bench_measure import Plan
    from clag_server.models.remote_config import RemoteConfigError
    from clag_server.settings import models_config

    configure_logging(level="error", json=None)
    named = {"models.slm": name, "models.slm_url": url or None, "models.slm_api_key_file": api_key_file}
    settings = load_settings({**flags, **{key: value for key, value in named.items() if value is not None}}, config)
    plan = Plan.quick() if quick else Plan()
    if seconds is not None:
        plan = replace(plan, stage_s=seconds)
    wanted = models_config(settings.models)
    if wanted.slm_url:
        # The number of requests in flight is what is looked for; the setting must not hide it.
        wanted = replace(wanted, slm_concurrency=max(wanted.slm_concurrency, *plan.callers))
    try:
        status, found = asyncio.run(_run(wanted, plan))
    except RemoteConfigError as error:
        raise CliError(str(error), ExitCode.USAGE) from error
    except StoreError as error:
        raise missing_model(error) from error
    except ModelError as error:
        raise CliError(f"the model stopped answering: {error}", ExitCode.SERVER) from error
    advice = advise(found, remote=bool(wanted.slm_url))
    if as_json:
        print_document(_document(status, found, advice, url=wanted.slm_url))
    else:
        _show(status, found, advice)


async def _run(config: ModelsConfig, plan: Plan) -> tuple[EngineStatus, Measured]:
    from clag_server.cli.bench_measure import measure
    from clag_server.models.factory import build_models, build_remote

    async def work(slm: SlmEngine, status: Callable[[], EngineStatus]) -> tuple[EngineStatus, Measured]:
        note(f"waiting for {config.slm}")
        await _ready(status)
        found = await measure(slm, plan, lambda stage: note(f"measuring {stage}"))
        return status(), found

    if config.slm_url:
        remote = build_remote(config)
        return await _started(remote.start, remote.stop, lambda: work(remote, lambda: remote.status))
    host = build_models(config)
    return await _started(host.start, host.stop, lambda: work(host.slm, lambda: host.status().slm))


async def _started(
    start: Callable[[], Awaitable[None]], stop: Callable[[], Awaitable[None]], work: Callable[[], Awaitable[T]]
) -> T:
    await start()
    try:
        return await work()
    finally:
        await stop()


async def _ready(status: Callable[[], EngineStatus]) -> None:
    """Wait until a model is loaded.

    Raises:
        CliError: It cannot be loaded, or its server does not answer.
    """
    # No event is common to both kinds of engines; the wait is seconds long and is measured by the engine.
    while (now := status()).state is EngineState.LOADING:  # noqa: ASYNC110
        await asyncio.sleep(_POLL_S)
    if now.state is not EngineState.READY:
        code = ExitCode.UNREACHABLE if now.device == "remote" else ExitCode.MODEL_MISSING
        raise CliError(f"{now.model} does not answer: {now.reason}", code)


def advise(found: Measured, *, remote: bool) -> list[Advice]:
    """Return what to set for a model that was measured."""
    return [
        *_advise_annotation(found),
        *(
            []
            if found.choices
            else [Advice("", "", f"clusters are chosen by vectors alone: {found.choices_reason}")]
        ),
        *(_advise_concurrency(found) if remote else []),
        *_advise_latency(found, remote=remote),
    ]


def _advise_annotation(found: Measured) -> list[Advice]:
    valid = found.valid_rate
    if valid is None:
        return [Advice("organize.annotate", "terms", "no annotation was written in the time given")]
    if valid < 0.9:
        return [Advice("organize.annotate", "terms", f"only {valid:.0%} of the annotations could be used")]
    per_s = max((rate.per_s for rate in found.generations), default=0.0)
    cost_s = (1 / per_s if per_s else 0.0) + (1 / found.choices.per_s / _EPISODE if found.choices else 0.0)
    rate = 1 / cost_s if cost_s else 0.0
    why = f"{valid:.0%} of the annotations could be used; about {rate:.2g} memories/s would be organized"
    return [Advice("organize.annotate", "slm" if rate >= 1 else "terms", why)]


def _advise_concurrency(found: Measured) -> list[Advice]:
    if not found.generations:
        return []
    best = max(rate.per_s for rate in found.generations)
    enough = next(rate for rate in found.generations if rate.per_s >= 0.9 * best)
    most = found.generations[-1].callers
    why = (
        f"still faster at {most} than with fewer; try more"
        if enough.callers == most and len(found.generations) > 1
        else "more requests in flight are not answered faster"
    )
    return [Advice("models.slm_concurrency", str(enough.callers), why)]


def _advise_latency(found: Measured, *, remote: bool) -> list[Advice]:
    if not found.idle or not found.loaded:
        return [Advice("", "", "no interactive call was answered in the time given: take a smaller model")]
    ratio = found.loaded.p99_s / max(found.idle.p99_s, 1e-9)
    if ratio <= 3:
        return []
    what = "a lower models.slm_concurrency shortens it" if remote else "bulk imports are felt by those who ask"
    return [Advice("", "", f"under load the slowest interactive calls take {ratio:.1f} times as long; {what}")]


def _document(status: EngineStatus, found: Measured, advice: list[Advice], *, url: str) -> dict[str, object]:
    return {
        "model": status.model,
        "url": url or None,
        "device": status.device,
        "dtype": status.dtype,
        "load_s": status.load_s,
        "choices": asdict(found.choices) if found.choices else None,
        "choices_reason": found.choices_reason,
        "generations": [asdict(rate) for rate in found.generations],
        "valid_rate": found.valid_rate,
        "unusable": dict(found.failures),
        "interactive": found.interactive,
        "idle": asdict(found.idle) if found.idle else None,
        "loaded": asdict(found.loaded) if found.loaded else None,
        "advice": [asdict(one) for one in advice],
    }


def _show(status: EngineStatus, found: Measured, advice: list[Advice]) -> None:
    out = console()
    ran = " ".join(part for part in (status.device, status.dtype) if part)
    out.print(
        facts({"model": visible(status.model), "runs on": visible(ran), "ready after": f"{status.load_s:.1f} s"})
    )
    shown = table("what", "callers#", "a second#", "tokens out a second#")
    if found.choices:
        shown.add_row("choices among five", str(found.choices.callers), f"{found.choices.per_s:,.2f}", "")
    for rate in found.generations:
        shown.add_row(
            "structured generations", str(rate.callers), f"{rate.per_s:,.2f}", f"{rate.tokens_out_per_s:,.1f}"
        )
    out.print(shown)
    waits = table(f"interactive {found.interactive}", "calls#", "p50 ms#", "p99 ms#")
    for name, latency in (("idle", found.idle), ("under load", found.loaded)):
        waits.add_row(name, *_waits(latency))
    out.print(waits)
    valid = found.valid_rate
    causes = ", ".join(f"{count} {cause}" for cause, count in sorted(found.failures.items()))
    out.print(
        facts(
            {
                "usable annotations": "none came"
                if valid is None
                else f"{valid:.1%}" + (f" ({causes})" * bool(causes)),
                "no choices": visible(found.choices_reason),
            }
        )
    )
    settings = table("setting", "value", "why", title="Recommended")
    for one in advice:
        settings.add_row(one.setting, one.value, visible(one.why))
    out.print(settings)


def _waits(latency: Latency | None) -> tuple[str, str, str]:
    if latency is None:
        return "0", "", ""
    return str(latency.count), f"{latency.p50_s * 1e3:,.0f}", f"{latency.p99_s * 1e3:,.0f}"
