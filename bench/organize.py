"""Memories organized in full, against the released algorithm's call pattern with the same model in the same run.

In full: stored, embedded, routed, annotated, evolved, with the SLM at all three jobs whatever the probe says of it
(`organize.trust=full`). The figure comes with the share of the SLM's outputs that were used, and with its tokens:
empty answers cannot pass for speed. And with the check that evolution stayed inside clusters.

Goal (design, section 8): at least 50 times the released call pattern on a CPU.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from clag.v1 import types_pb2
from clag_client import AsyncClient

from bench.grouping_run import Organized, organize, routed_by, unusable, votes_that_agree
from bench.organize_history import evolved, locality, pasts
from bench.server import in_process, running_server, temporary_root
from bench.texts import repeated
from clag_server.models.specs import ModelKind
from clag_server.models.store import ModelStore
from clag_server.server import models_config
from clag_server.settings import load

MEMORIES: Final = 296
"""The example stream once."""
RELEASED: Final = 3
GOAL: Final = 50.0

_QUICK_MEMORIES: Final = 32
_WARM: Final = 4


async def main(
    *,
    quick: bool,
    slm: str | None = None,
    device: str = "auto",
    memories: int = 0,
    released: int = 0,
    report: Path | None = None,
) -> None:
    """Measure both sides, one after the other, and print what came of it."""
    count = memories or (_QUICK_MEMORIES if quick else MEMORIES)
    found = await organized_by_the_product(count, slm=slm, device=device)
    folder = _folder(slm)
    arguments = ["--memories", str(released or RELEASED), "--device", device, *(["--quick"] if quick else [])]
    print("the released call pattern ...", flush=True)
    found |= json.loads(await in_process("bench.organize_released", [str(folder), *arguments]))
    found["ratio"] = found["memories_per_s"] / found["released_memories_per_s"]
    for name, value in found.items():
        print(f"{name}: {value:.4g}")
    if report is not None:
        await asyncio.to_thread(report.write_text, json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if found.get("reckoned"):
        print("the released side is reckoned from its speed of reading and writing and from the measured length of")
        print("its answers; a run without --quick lets it write them")
    print(f"local: {found['history_entries']:.0f} entries, {found['history_across']:.0f} across clusters")
    if found["history_across"]:
        raise SystemExit("evolution crossed a cluster")
    tokens = found["tokens_in_per_memory"] + found["tokens_out_per_memory"]
    print(
        f"organize: {found['ratio']:.1f} x the released call pattern (goal {GOAL:g}), "
        f"{found['calls_per_memory']:.2f} calls and {tokens:.0f} tokens a memory"
    )


async def organized_by_the_product(count: int, *, slm: str | None, device: str) -> dict[str, float]:
    """Stream memories into a real server with the SLM at all three jobs; what came of it, and how fast."""
    settings: dict[str, object] = {
        "organize.trust": "full",
        "organize.annotate": "slm",
        "organize.probe_auto": False,
        # Nothing is left to the stand-ins for coming late: what is not the model's word here is its failure.
        "organize.slm_behind_s": 86_400.0,
        "models.device": device,
        **({"models.slm": slm} if slm else {}),
    }
    with temporary_root() as root:
        async with running_server(root, settings) as server, AsyncClient(server.address) as client:
            print("warming ...", flush=True)
            await organize(client, "warm", _items(_WARM))
            print(f"{count} memories ...", flush=True)
            result = await organize(client, "bench", _items(count))
            past = await pasts(client, "bench", result.memories)
            inside, done = locality(past), evolved(result.memories, past)
            lag_ms = server.lag.p99_ms()
    return facts(result) | {
        "evolved_by_slm": done.by_model / count,
        "rewritten_neighbours_per_memory": done.rewritten / count,
        "links_per_memory": done.links / count,
        "judged_links_per_memory": done.judged / count,
        "history_entries": inside.entries,
        "history_across": inside.across,
        "loop_lag_p99_ms": lag_ms,
    }


def facts(result: Organized) -> dict[str, float]:
    """Speed, shares of the SLM's outputs that were used by kind, and its calls and tokens."""
    count = len(result.memories)
    decisions = result.decisions()
    choices = [one for one in decisions if len(one.candidates) > 1]
    votes, _ = votes_that_agree(decisions)
    by_slm = types_pb2.ANNOTATION_SOURCE_SLM
    return {
        "memories": count,
        "seconds": result.seconds,
        "memories_per_s": count / result.seconds,
        "annotated_by_slm": sum(one.annotated_by == by_slm for one in result.memories) / count,
        "episodes": len(decisions),
        "clusters": len(result.clusters),
        "routing_choices": len(choices),
        "routing_votes_used": votes / len(choices) if choices else 0.0,
        "routed_by_slm": routed_by(result.memories)["slm"],
        "slm_requests": result.stats.outcomes.slm_requests,
        "slm_fallbacks": result.stats.outcomes.slm_fallbacks,
        "slm_unusable": unusable(result.stats),
        "calls_per_memory": result.work.calls / count,
        "tokens_in_per_memory": result.work.tokens_in / count,
        "tokens_out_per_memory": result.work.tokens_out / count,
    }


def _items(count: int) -> Sequence[types_pb2.MemoryInput]:
    return [
        types_pb2.MemoryInput(
            memory_id=f"m{number:05d}",
            text=text,
            speaker=speaker,
            session_id=session,
            kind=types_pb2.MEMORY_KIND_OBSERVATION,
        )
        for number, (text, speaker, session) in enumerate(repeated(count))
    ]


def _folder(slm: str | None) -> Path:
    """The folder of the same model. Raises SystemExit where it runs elsewhere."""
    config = models_config(load({"models.slm": slm} if slm else {}).models)
    if not config.slm or config.slm_url:
        raise SystemExit("organize compares with the same model in this machine: set models.slm")
    return ModelStore(config.cache).resolve(config.slm, ModelKind.SLM).path
