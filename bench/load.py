"""The client side of the ingest benchmark, a process of its own: streams memories, prints the seconds."""

from __future__ import annotations

import argparse
import asyncio
import time

import numpy as np
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from clag_client import AsyncClient

from bench.texts import repeated

DIM = 384


def inputs(count: int, *, embeddings: bool) -> list[types_pb2.MemoryInput]:
    rows = np.random.default_rng(7).normal(size=(count, DIM)).astype(np.float32) if embeddings else None
    return [
        types_pb2.MemoryInput(
            text=text,
            speaker=speaker,
            session_id=session,
            kind=types_pb2.MEMORY_KIND_OBSERVATION,
            embedding=rows[i] if rows is not None else (),
        )
        for i, (text, speaker, session) in enumerate(repeated(count))
    ]


async def stream(
    address: str, namespace: str, items: list[types_pb2.MemoryInput], level: pb.AckLevel.ValueType
) -> float:
    started = time.perf_counter()
    async with AsyncClient(address) as client, client.ingest(namespace, items, ack_level=level) as ingestion:
        finished = await ingestion.wait()
    seconds = time.perf_counter() - started
    if finished.created != len(items):
        raise RuntimeError(f"{finished.created} of {len(items)} were created")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("count", type=int)
    parser.add_argument("--embeddings", action="store_true")
    parser.add_argument("--searchable", action="store_true")
    arguments = parser.parse_args()
    items = inputs(arguments.count, embeddings=arguments.embeddings)
    level = pb.ACK_LEVEL_SEARCHABLE if arguments.searchable else pb.ACK_LEVEL_DURABLE
    print(asyncio.run(stream(arguments.address, "bench", items, level)))


if __name__ == "__main__":
    main()
