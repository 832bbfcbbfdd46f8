"""`python -m bench NAME [--quick]` runs one benchmark."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from bench import ingest, retrieve, slm

BENCHES = {"ingest": ingest.main, "retrieve": retrieve.main}


def main() -> None:
    """Run the named benchmark."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", choices=sorted([*BENCHES, "slm"]))
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, for a first look")
    of_slm = parser.add_argument_group("slm")
    of_slm.add_argument("--slm", help="model name, folder or .gguf file; the settings' model when left out")
    of_slm.add_argument("--device", default="auto", help="where it runs")
    of_slm.add_argument("--report", type=Path, help="JSON file for all numbers")
    arguments = parser.parse_args()
    if arguments.name == "slm":
        asyncio.run(
            slm.main(quick=arguments.quick, slm=arguments.slm, device=arguments.device, report=arguments.report)
        )
        return
    asyncio.run(BENCHES[arguments.name](quick=arguments.quick))


if __name__ == "__main__":
    main()
