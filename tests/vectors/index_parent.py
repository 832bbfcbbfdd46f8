"""A server process in small: runs a vector index, prints the process id of its child, and waits to be killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from clag_server.vectors.index import MilvusIndex
from tests.vectors.catalog_double import DIM, MemoryFeed
from tests.vectors.helpers import child_pid, settled


async def main() -> None:
    """Run until killed."""
    index = MilvusIndex(MemoryFeed(), Path(sys.argv[1]))
    await index.start()
    index.notify(1, DIM)
    await settled(index, 1)
    sys.stdout.write(f"child {child_pid(index)}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
