"""The client of the scale benchmark, a process of its own: streams a slice of the corpus, prints the seconds."""

from __future__ import annotations

import asyncio
import sys
import time

from clag.v1 import memory_service_pb2 as pb
from clag_client import AsyncClient

from bench.scale_data import memories

NAMESPACE = "scale"


async def load(address: str, start: int, stop: int) -> float:
    """Stream memories `start` to `stop` until they are durable; returns the seconds."""
    begun = time.perf_counter()
    async with (
        AsyncClient(address) as client,
        client.ingest(NAMESPACE, memories(start, stop), ack_level=pb.ACK_LEVEL_DURABLE) as ingestion,
    ):
        finished = await ingestion.wait()
    if finished.created != stop - start:
        raise RuntimeError(f"{finished.created} of {stop - start} were created")
    return time.perf_counter() - begun


if __name__ == "__main__":
    print(asyncio.run(load(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
