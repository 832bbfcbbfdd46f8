"""A process that stores batches for ever and says which it was told are durable, until it is killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from clag_server.catalog.sqlite import SqliteCatalog
from clag_server.types.memory import NewMemory
from tests.catalog import support

BATCH = 16


async def main(path: Path) -> None:
    """Resume the stream "s" and go on from its watermark; one line a batch: the last durable sequence number."""
    catalog = SqliteCatalog(path)
    await catalog.open()
    ns = (await support.namespace(catalog)).ns
    position = await catalog.open_stream(ns, "s")
    seq = position.next_seq
    while True:
        items = [NewMemory(text=f"note {seq + i}", session_id="s") for i in range(BATCH)]
        await catalog.append(ns, items, first_seq=seq, stream=position.ref, now_ns=support.NOW)
        seq += BATCH
        sys.stdout.write(f"{seq - 1}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
