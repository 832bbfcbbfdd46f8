"""`python -m bench NAME [--quick]` runs one benchmark."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from bench import crash, faults, ingest, retrieve, scale, slm

BENCHES = {"ingest": ingest.main, "retrieve": retrieve.main}
STORE = ("crash", "faults", "scale")


def main() -> None:
    """Run the named benchmark."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", choices=sorted([*BENCHES, *STORE, "slm"]))
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, for a first look")
    of_slm = parser.add_argument_group("slm")
    of_slm.add_argument("--slm", help="model name, folder or .gguf file; the settings' model when left out")
    of_slm.add_argument("--device", default="auto", help="where it runs")
    of_slm.add_argument("--report", type=Path, help="JSON file for all numbers")
    of_store = parser.add_argument_group("crash, faults, scale")
    of_store.add_argument("--sizes", type=_numbers, default=(), help="scale: numbers of memories, with commas")
    of_store.add_argument("--root", type=Path, help="scale: directory for the data; a temporary one when left out")
    of_store.add_argument("--no-evolve", action="store_true", help="scale: neither annotate nor link memories")
    of_store.add_argument("--only", default="", help="faults: drills whose name holds this")
    of_store.add_argument("--kills", type=int, default=0, help="crash: how often; 100 when left out")
    of_store.add_argument("--seed", type=int, help="crash: repeats the choices of a run")
    arguments = parser.parse_args()
    if arguments.name in STORE:
        sys.exit(asyncio.run(_store(arguments)))
    if arguments.name == "slm":
        asyncio.run(
            slm.main(quick=arguments.quick, slm=arguments.slm, device=arguments.device, report=arguments.report)
        )
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


def _numbers(text: str) -> list[int]:
    return [int(part.replace("_", "")) for part in text.split(",")]


if __name__ == "__main__":
    main()
