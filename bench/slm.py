"""The engine of the small language model: many callers against the released call pattern and static batches.

Goals: at 32 callers at least 15 times the choices and 6 times the generations of the released pattern (one call at
a time, free JSON, same model), 0.8 of static batches of equal lengths, and an interactive choice under 200 waiting
bulk generations at p99 within 3 times an idle engine's.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

from bench.server import LoopLag, in_process
from bench.slm_load import Load
from bench.slm_work import annotation_prompts, notes
from clag_server.models.config import EngineLimits, ModelsConfig
from clag_server.models.factory import build_models
from clag_server.models.specs import ModelKind
from clag_server.models.store import ModelStore
from clag_server.server import models_config
from clag_server.settings import load

CALLERS = (1, 8, 32)


async def main(*, quick: bool, slm: str | None = None, device: str = "auto", report: Path | None = None) -> None:
    config = models_config(load({"models.device": device, **({"models.slm": slm} if slm else {})}).models)
    found = await engine_side(config, quick=quick)
    folder = ModelStore(config.cache).resolve(config.slm or "", ModelKind.SLM).path
    sizes = [
        *("--calls", "1" if quick else "6", "--answer-tokens", "48" if quick else "300"),
        *("--tokens", "16" if quick else "40", "--device", device),
    ]
    print("released pattern and static batches ...", flush=True)
    found |= json.loads(
        await in_process("bench.slm_direct", [str(folder), *sizes, *([] if quick else ["--continuous"])])
    )
    found |= ratios(found)
    for name, value in sorted(found.items()):
        print(f"{name}: {value:.4g}")
    if report is not None:
        await asyncio.to_thread(report.write_text, json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(
        f"slm: choices {found['choices_ratio']:.1f} x, generations {found['generations_ratio']:.1f} x, "
        f"of limit {found['of_limit']:.2f}, interactive p99 {found['interactive_p99_ratio']:.1f} x"
    )


async def engine_side(config: ModelsConfig, *, quick: bool) -> dict[str, float]:
    """Everything that the engine itself is measured for."""
    host = build_models(config)
    await host.start()
    lag = LoopLag()
    sampling = asyncio.create_task(lag.sample())
    try:
        one = Load(host)
        await one.choose("warm")
        await one.annotate(annotation_prompts(["warm"])[0])
        lag.samples.clear()
        found = await throughput(one, quick=quick)
        idle = await one.choice_ms(10 if quick else 200)
        busy = await one.choice_ms_under_bulk(10 if quick else 200, 200)
        found |= {
            "idle_choice_p50_ms": idle[0], "idle_choice_p99_ms": idle[1],
            "bulk_choice_p50_ms": busy[0], "bulk_choice_p99_ms": busy[1],
        }  # fmt: skip
        found["valid_share"] = await one.valid_share(16 if quick else 2000)
        before, after = await one.memory_mib(24 if quick else 5000)
        found |= {"memory_quarter_mib": before, "memory_end_mib": after, "loop_lag_p99_ms": lag.p99_ms()}
        if not quick:
            answered, failed = await one.kills(20)
            found |= {"kills_answered": answered, "kills_typed_errors": failed}
    finally:
        sampling.cancel()
        await host.stop()
    if not quick:
        found |= await without_prefixes(config)
    return found


async def throughput(one: Load, *, quick: bool) -> dict[str, float]:
    found: dict[str, float] = {}
    for callers in CALLERS[-1:] if quick else CALLERS:
        print(f"{callers} callers ...", flush=True)
        found[f"choices_per_s_{callers}"] = await one.choices_per_s(callers, (1 if quick else 4) * callers + 4)
        rate, tokens = await one.generations_per_s(callers, callers * (1 if quick else 3))
        found[f"generations_per_s_{callers}"], found["tokens_of_a_generation"] = rate, tokens
    prompt = annotation_prompts(notes(1))[0]
    found["engine_tokens_per_s"] = await one.tokens_per_s(prompt, 32, 16 if quick else 40)
    return found


async def without_prefixes(config: ModelsConfig) -> dict[str, float]:
    """The same with nothing kept: heads and prompt beginnings are read every time."""
    limits: EngineLimits = replace(config.limits, prefix_cache_mib=0)
    host = build_models(replace(config, limits=limits))
    await host.start()
    try:
        one = Load(host)
        await one.choose("warm")
        return {
            "choices_per_s_32_nothing_kept": await one.choices_per_s(32, 64),
            "generations_per_s_32_nothing_kept": (await one.generations_per_s(32, 64))[0],
        }
    finally:
        await host.stop()


def ratios(found: dict[str, float]) -> dict[str, float]:
    choices, generations = found["choices_per_s_32"], found["generations_per_s_32"]
    return {
        "choices_ratio": choices / found["released_choices_per_s"],
        "generations_ratio": generations / found["released_generations_per_s"],
        "choices_of_limit": choices / found["static_choices_per_s"],
        "tokens_of_limit": found["engine_tokens_per_s"] / found["static_tokens_per_s"],
        "of_limit": min(
            choices / found["static_choices_per_s"], found["engine_tokens_per_s"] / found["static_tokens_per_s"]
        ),
        "interactive_p99_ratio": found["bulk_choice_p99_ms"] / found["idle_choice_p99_ms"],
        "interactive_p50_ratio": found["bulk_choice_p50_ms"] / found["idle_choice_p50_ms"],
    }
