"""`python -m bench NAME [--quick]` runs one benchmark."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from bench import crash, faults, grouping, ingest, organize, relevance, retrieve, scale, slm, spoil
from bench.grouping_data import DATA_DIR

BENCHES = {"ingest": ingest.main, "retrieve": retrieve.main}
STORE = ("crash", "faults", "scale")
ORGANIZING = ("grouping", "organize", "relevance", "spoil")


def main() -> None:
    """Run the named benchmark."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", choices=sorted([*BENCHES, *STORE, *ORGANIZING, "slm"]))
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, for a first look")
    of_slm = parser.add_argument_group("slm, organize, grouping, spoil")
    of_slm.add_argument("--slm", help="model name, folder or .gguf file; the settings' model when left out")
    of_slm.add_argument("--device", default="auto", help="where it runs (slm, organize)")
    of_slm.add_argument(
        "--report", type=Path, help="JSON file for all numbers; grouping and spoil leave out runs that it has"
    )
    of_organizing = parser.add_argument_group("organize, grouping, spoil")
    of_organizing.add_argument("--memories", type=int, default=0, help="organize: how many are organized")
    of_organizing.add_argument("--released", type=int, default=0, help="organize: memories of the released pattern")
    of_organizing.add_argument("--strategies", type=_names, default=grouping.STRATEGIES, help="grouping: which")
    of_organizing.add_argument("--models", type=_names, default=spoil.MODELS, help="spoil: doubles, or model names")
    of_organizing.add_argument(
        "--data", type=_names, default=(), help="example, locomo, locomo:conv-26, with commas"
    )
    of_organizing.add_argument(
        "--data-dir", type=Path, default=DATA_DIR, help="directory with locomo/locomo10.json"
    )
    of_organizing.add_argument(
        "--limit", type=int, default=0, help="memories of each stream, or pools (relevance); 0 for all"
    )
    of_organizing.add_argument("--trust", default="", help="probe or full, whom the server believes")
    of_store = parser.add_argument_group("crash, faults, scale")
    of_store.add_argument("--sizes", type=_numbers, default=(), help="scale: numbers of memories, with commas")
    of_store.add_argument("--root", type=Path, help="scale: directory for the data; a temporary one when left out")
    of_store.add_argument("--no-evolve", action="store_true", help="scale: neither annotate nor link memories")
    of_store.add_argument("--only", default="", help="faults: drills of this name; slm: parts, with commas")
    of_store.add_argument("--kills", type=int, default=0, help="crash: how often; 100 when left out")
    of_store.add_argument("--seed", type=int, help="crash: repeats the choices of a run")
    arguments = parser.parse_args()
    if arguments.name in STORE:
        sys.exit(asyncio.run(_store(arguments)))
    if arguments.name == "slm":
        asyncio.run(
            slm.main(
                quick=arguments.quick,
                slm=arguments.slm,
                device=arguments.device,
                report=arguments.report,
                only=arguments.only,
            )
        )
        return
    if arguments.name in ORGANIZING:
        asyncio.run(_organizing(arguments))
        return
    asyncio.run(BENCHES[arguments.name](quick=arguments.quick))


async def _store(arguments: argparse.Namespace) -> int:
    """Run a benchmark of the store; returns the exit code."""
    if arguments.name == "crash":
        return await crash.main(quick=arguments.quick, kills=arguments.kills, seed=arguments.seed)
    if arguments.name == "faults":
        return await faults.main(quick=arguments.quick, only=arguments.only)
    return await scale.main(
        quick=arguments.quick, sizes=arguments.sizes, root=arguments.root, evolve=not arguments.no_evolve
    )


async def _organizing(arguments: argparse.Namespace) -> None:
    """Run a benchmark of how memories are organized."""
    if arguments.name == "relevance":
        await relevance.main(
            quick=arguments.quick, data_dir=arguments.data_dir, limit=arguments.limit, report=arguments.report
        )
        return
    chosen = {"quick": arguments.quick, "slm": arguments.slm, "report": arguments.report}
    if arguments.name == "organize":
        await organize.main(
            **chosen, device=arguments.device, memories=arguments.memories, released=arguments.released
        )
        return
    chosen |= {"data_dir": arguments.data_dir, "limit": arguments.limit}
    if arguments.name == "grouping":
        data, trust = arguments.data or grouping.DATA, arguments.trust or "probe"
        await grouping.main(**chosen, strategies=arguments.strategies, data=data, trust=trust)
        return
    trusts = (arguments.trust,) if arguments.trust else spoil.TRUSTS
    await spoil.main(**chosen, models=arguments.models, data=arguments.data or spoil.DATA, trusts=trusts)


def _names(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def _numbers(text: str) -> list[int]:
    return [int(part.replace("_", "")) for part in text.split(",")]


if __name__ == "__main__":
    main()
