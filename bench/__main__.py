"""`python -m bench NAME [--quick]` runs one benchmark."""

from __future__ import annotations

import argparse
import asyncio

from bench import ingest, retrieve

BENCHES = {"ingest": ingest.main, "retrieve": retrieve.main}


def main() -> None:
    """Run the named benchmark."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", choices=sorted(BENCHES))
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, for a first look")
    arguments = parser.parse_args()
    asyncio.run(BENCHES[arguments.name](quick=arguments.quick))


if __name__ == "__main__":
    main()
