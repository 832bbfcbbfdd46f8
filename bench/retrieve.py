"""Retrieval over the socket, against what it cannot do without: embedding the query and searching three partitions.

Goal (design, section 8): two-stage p50 at most twice that. No SLM runs meanwhile: how questions fare beside its
work is the business of the engine's own benchmark.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
from clag.v1 import memory_service_pb2 as pb
from clag_client import AsyncClient

from bench.load import inputs, stream
from bench.server import running_server, temporary_root
from bench.texts import questions
from clag_server.catalog.sqlite import SqliteCatalog
from clag_server.models.api import Priority
from clag_server.models.factory import build_models
from clag_server.server import models_config
from clag_server.settings import load
from clag_server.vectors.api import IndexState
from clag_server.vectors.index import MilvusIndex

PARTITIONS = 3


async def main(*, quick: bool) -> None:
    count = 300 if quick else 1_500
    rounds = 3 if quick else 15
    asked = questions()
    with temporary_root() as root:
        async with running_server(root, {"models.slm": ""}) as server:
            await stream(server.address, "bench", inputs(count, embeddings=False), pb.ACK_LEVEL_ORGANIZED)
            async with AsyncClient(server.address) as client:

                async def two_stage(question: str) -> None:
                    await client.get_context("bench", question, slm_use=pb.SLM_USE_NEVER)

                whole = await timed(two_stage, asked, rounds)
        floor = await embed_and_search(root, asked, rounds)
    print(
        f"{count} memories: two-stage over the socket p50 {whole[0]:.1f} ms p99 {whole[1]:.1f} ms; "
        f"embed + search of {PARTITIONS} partitions p50 {floor[0]:.1f} ms p99 {floor[1]:.1f} ms"
    )
    print(f"retrieve_p50_ratio: {whole[0] / floor[0]:.2f} (goal at most 2)")
    print(f"retrieve_p99_ratio: {whole[1] / floor[1]:.2f} (context only)")


async def embed_and_search(root: Path, asked: list[str], rounds: int) -> tuple[float, float]:
    """Time embedding and a search of three partitions on the same stores, without server and socket."""
    settings = load({"storage.data_dir": root / "data"})
    models = build_models(models_config(settings.models))
    catalog = SqliteCatalog(settings.storage.data_dir / "catalog.db")
    index = MilvusIndex(catalog, settings.storage.data_dir)
    await models.start()
    await catalog.open()
    await index.start()
    try:
        namespace = await catalog.get_namespace("bench")
        index.notify(namespace.ns, namespace.embedder.dim)
        while index.status().state is not IndexState.READY:  # noqa: ASYNC110 - the index offers no event
            await asyncio.sleep(0.05)
        clusters = [cluster.cluster for cluster in await catalog.clusters(namespace.ns)][:PARTITIONS]

        async def base(question: str) -> None:
            rows = await models.embedder.embed([question], priority=Priority.INTERACTIVE)
            await index.search(namespace.ns, clusters, rows[0], limit=10)

        return await timed(base, asked, rounds)
    finally:
        await index.stop()
        await catalog.close()
        await models.stop()


async def timed(call: Callable[[str], Awaitable[None]], asked: list[str], rounds: int) -> tuple[float, float]:
    """Return p50 and p99 in milliseconds over all questions, after one round to warm up."""
    seconds = []
    for round_ in range(rounds + 1):
        for question in asked:
            started = time.perf_counter()
            await call(question)
            if round_:
                seconds.append(time.perf_counter() - started)
    return tuple(np.percentile(seconds, [50, 99]) * 1000)
