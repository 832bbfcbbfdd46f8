"""The engine of the small language model: many callers against the released call pattern and static batches.

Goals: at 32 callers at least 15 times the choices and 6 times the generations of the released pattern (one call at
a time, free JSON, same model), 0.8 of static batches of equal lengths, an interactive choice under 200 waiting bulk
generations and an interactive embedding under 2,000 waiting texts at p99 within 3 times an idle engine's, every
hostile note's answer of its shape, flat memory, and an answer or a typed error for everyone when the worker is
killed.

Every part is bounded in time; `--only latency,embed` runs some of them, and `--report FILE` merges what several
runs measured.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from bench.server import LoopLag, in_process
from bench.slm_load import Load
from bench.slm_report import Report
from bench.slm_work import annotation_prompts, notes
from clag_server.children import RestartPolicy
from clag_server.models.config import ModelsConfig
from clag_server.models.factory import build_models
from clag_server.models.specs import ModelKind
from clag_server.models.store import ModelStore
from clag_server.server import models_config
from clag_server.settings import load

CALLERS = (1, 8, 32)
NEXT_WORKER = RestartPolicy(max_delay_s=1.0)
"""After a kill; the product waits longer each time, which would only make the benchmark longer."""


@dataclass
class Bench:
    config: ModelsConfig
    quick: bool
    _shared: Load | None = None

    def sized(self, quick: float, full: float) -> float:
        return quick if self.quick else full

    async def engine(self) -> Load:
        """Return the engine that the parts share, warm."""
        if self._shared is None:
            self._shared = await started(self.config)
        return self._shared

    async def stop(self) -> None:
        if self._shared is not None:
            await self._shared.host.stop()

    async def throughput(self) -> dict[str, float]:
        """Choices and generations a second by callers, and of equal ones what static batches do too."""
        found: dict[str, float] = {}
        one = await self.engine()
        for callers in CALLERS[-1:] if self.quick else CALLERS:
            found[f"choices_per_s_{callers}"] = await one.choices_per_s(callers, self.sized(8, 20))
            rate, tokens = await one.generations_per_s(callers, self.sized(12, 40))
            found[f"generations_per_s_{callers}"], found["tokens_of_a_generation"] = rate, tokens
        prompt = annotation_prompts(notes(1))[0]
        found["equal_choices_per_s"] = await one.equal_choices_per_s(32, self.sized(8, 20))
        found["engine_tokens_per_s"] = await one.tokens_per_s(prompt, 32, 16 if self.quick else 40)
        return found

    async def prefixes(self) -> dict[str, float]:
        """The same with nothing kept: heads and prompt beginnings are read every time."""
        config = replace(self.config, limits=replace(self.config.limits, prefix_cache_mib=0))
        one = await started(config)
        try:
            rate, _ = await one.generations_per_s(32, self.sized(8, 30))
            choices = await one.choices_per_s(32, self.sized(8, 20))
        finally:
            await one.host.stop()
        return {"choices_per_s_32_nothing_kept": choices, "generations_per_s_32_nothing_kept": rate}

    async def latency(self) -> dict[str, float]:
        """An interactive choice on an idle engine and while 200 bulk generations wait."""
        count, most_s = int(self.sized(20, 200)), self.sized(10, 60)
        one = await self.engine()
        idle = await one.choice_ms(count, most_s)
        busy = await one.choice_ms_under_bulk(count, 2 * most_s, bulk=200)
        return {**idle.numbers("idle_choice"), **busy.numbers("bulk_choice")}

    async def embed(self) -> dict[str, float]:
        """An interactive embedding on an idle engine and while 2,000 bulk texts wait."""
        count, most_s = int(self.sized(40, 300)), self.sized(5, 30)
        one = await self.engine()
        idle = await one.embed_ms(count, most_s)
        busy = await one.embed_ms_under_bulk(count, 2 * most_s, bulk=2000)
        return {**idle.numbers("idle_embed"), **busy.numbers("bulk_embed")}

    async def lag(self) -> dict[str, float]:
        """How late the event loop's timers are while choices, generations and embeddings keep the engine full."""
        lag = LoopLag()
        one = await self.engine()
        sampling = asyncio.create_task(lag.sample())
        try:
            await one.everything(self.sized(5, 20))
        finally:
            sampling.cancel()
        return {"loop_lag_p99_ms": lag.p99_ms()}

    async def validity(self) -> dict[str, float]:
        """Answers to hostile notes that are values of their schema."""
        one = await self.engine()
        valid, asked = await one.valid(24 if self.quick else 2000, self.sized(15, 900))
        return {"hostile_asked": asked, "hostile_valid": valid, "valid_share": valid / asked}

    async def memory(self) -> dict[str, float]:
        """Memory of the worker after a quarter of many requests of random length, and after all."""
        one = await self.engine()
        quarter, end, answered = await one.memory_mib(60 if self.quick else 5000, self.sized(15, 900))
        return {"memory_quarter_mib": quarter, "memory_end_mib": end, "random_requests": answered}

    async def kills(self) -> dict[str, float]:
        """The worker killed again and again under load: who hears what."""
        one = await self.engine()
        heard = await one.kills(2 if self.quick else 20, self.sized(60, 400))
        return heard.numbers()

    async def released(self) -> dict[str, float]:
        """The released call pattern and static batches, in a process of their own."""
        return await self.direct("--calls", "1" if self.quick else "4")

    async def continuous(self) -> dict[str, float]:
        """The library's own continuous batching."""
        return await self.direct("--continuous")

    async def direct(self, *flags: str) -> dict[str, float]:
        folder = ModelStore(self.config.cache).resolve(self.config.slm or "", ModelKind.SLM).path
        sizes = [*("--answer-tokens", "48" if self.quick else "300"), *("--tokens", "16" if self.quick else "40")]
        said = await in_process("bench.slm_direct", [str(folder), "--device", self.config.device, *sizes, *flags])
        found: dict[str, float] = json.loads(said)
        return found


async def started(config: ModelsConfig) -> Load:
    """Start an engine and warm it."""
    host = build_models(config, policy=NEXT_WORKER)
    await host.start()
    one = Load(host)
    await asyncio.gather(one.choose("warm"), one.annotate(annotation_prompts(["warm"])[0]))
    await one.embed_one("warm")
    return one


PARTS: dict[str, Callable[[Bench], Awaitable[dict[str, float]]]] = {
    "released": Bench.released,
    "throughput": Bench.throughput,
    "latency": Bench.latency,
    "embed": Bench.embed,
    "validity": Bench.validity,
    "memory": Bench.memory,
    "lag": Bench.lag,
    "kills": Bench.kills,
    "prefixes": Bench.prefixes,
    "continuous": Bench.continuous,
}
QUICK = ("released", "throughput", "latency")
"""What the closing line needs; the others have quick sizes too, with `--only`."""


async def main(
    *, quick: bool, slm: str | None = None, device: str = "auto", report: Path | None = None, only: str = ""
) -> None:
    names = only.split(",") if only else list(QUICK if quick else PARTS)
    if unknown := set(names) - set(PARTS):
        raise SystemExit(f"no part {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    config = models_config(load({"models.device": device, **({"models.slm": slm} if slm else {})}).models)
    kept = Report.open(report, model=config.slm or "", device=device)
    bench = Bench(config, quick)
    try:
        for name in names:
            began = time.perf_counter()
            print(f"{name} ...", flush=True)
            numbers = await PARTS[name](bench)
            kept.add(name, time.perf_counter() - began, numbers, quick=quick)
            kept.show_part(name)
    finally:
        await bench.stop()
    kept.show()
