"""Ingest: the contract path without models, stored-and-searchable memories, and the loop's lag meanwhile.

Goals (design, section 8): the contract path at 0.7 of raw SQLite inserts of the same rows in batches of 64, framing
and validation alone 50,000 items/s; stored-and-searchable memories/s at 0.85 of raw batched encode.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path
from typing import cast

from clag.v1 import memory_service_pb2 as pb

from bench.load import inputs
from bench.server import in_process, running_server, temporary_root
from clag_server.contract import codec
from clag_server.models.api import Priority
from clag_server.models.factory import build_models
from clag_server.server import models_config
from clag_server.settings import load

BATCH = 64


async def main(*, quick: bool) -> None:
    await contract_path(2_000 if quick else 20_000)
    validation(2_000 if quick else 20_000)
    await searchable(300 if quick else 2_000)


async def contract_path(count: int) -> None:
    """Stream precomputed embeddings; compare with raw inserts of the rows that this made."""
    with temporary_root() as root:
        async with running_server(root, {"models.slm": "", "ingest.pipeline": False}) as server:
            cpu = time.process_time()
            seconds = float(await in_process("bench.load", [server.address, str(count), "--embeddings"]))
            cpu = time.process_time() - cpu
            lag_ms = server.lag.p99_ms()
            await asyncio.to_thread(_checkpoint, server.data_dir / "catalog.db")
            raw_cpu = time.process_time()
            raw = await asyncio.to_thread(raw_inserts, server.data_dir / "catalog.db", root / "raw.db")
            raw_cpu = time.process_time() - raw_cpu
    rate = count / seconds
    print(
        f"contract path {rate:,.0f} items/s ({cpu / count * 1e6:.0f} us CPU an item in the server), "
        f"raw inserts {raw:,.0f} items/s ({raw_cpu / count * 1e6:.0f} us CPU), loop lag p99 {lag_ms:.1f} ms"
    )
    print(f"ingest_contract_ratio: {rate / raw:.2f} (goal 0.7 of raw SQLite batch inserts)")
    print(f"ingest_loop_lag_p99_ms: {lag_ms:.1f} (goal: a few ms, context only)")


def raw_inserts(source: Path, target: Path) -> float:
    """Insert the memories and changes of `source` into the same empty tables; return memories/s."""
    old = sqlite3.connect(source)
    rows = {
        table: old.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()  # noqa: S608 - our own table names
        for table in ("memories", "changes")
    }
    new = sqlite3.connect(target, isolation_level=None)
    new.execute("PRAGMA journal_mode=WAL")
    new.execute("PRAGMA synchronous=FULL")
    for (ddl,) in old.execute(
        "SELECT sql FROM sqlite_master WHERE tbl_name IN ('memories', 'changes') AND sql > ''"
    ):
        new.execute(ddl)
    started = time.perf_counter()
    for start in range(0, len(rows["memories"]), BATCH):
        new.execute("BEGIN IMMEDIATE")
        for table, all_rows in rows.items():
            batch = all_rows[start : start + BATCH]
            marks = ",".join("?" * len(batch[0]))
            new.executemany(f"INSERT INTO {table} VALUES ({marks})", batch)  # noqa: S608
        new.execute("COMMIT")
    return len(rows["memories"]) / (time.perf_counter() - started)


def _checkpoint(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")


def validation(count: int) -> None:
    """Decode frames and validate every item, nothing else."""
    items = inputs(count, embeddings=False)
    frames = [
        pb.IngestRequest(batch=pb.IngestBatch(first_seq=i + 1, items=items[i : i + BATCH])).SerializeToString()
        for i in range(0, count, BATCH)
    ]
    decode = codec.decoder("clag.v1.IngestRequest", repair=True)
    started = time.perf_counter()
    for frame in frames:
        decoded = codec.checked_frame(decode(frame))
        for item in cast("pb.IngestRequest", decoded.message).batch.items:
            if codec.violations(item):
                raise RuntimeError("a valid item was refused")
    rate = count / (time.perf_counter() - started)
    print(f"ingest_validation_items_per_s: {rate:,.0f} (goal 50,000)")


async def searchable(count: int) -> None:
    """Stream texts until they are searchable; compare with batched encode in the same worker, nothing else.

    No SLM runs meanwhile: what it takes from the embedder is the business of the engine's own benchmark.
    """
    with temporary_root() as root:
        async with running_server(root, {"models.slm": ""}) as server:
            seconds = float(await in_process("bench.load", [server.address, str(count), "--searchable"]))
            lag_ms = server.lag.p99_ms()
    models = build_models(models_config(load({}).models))
    await models.start()
    try:
        texts = [f"[2 March 2026] {item.speaker}: {item.text}" for item in inputs(count, embeddings=False)]
        await models.embedder.embed(texts[:BATCH], priority=Priority.BULK)
        started = time.perf_counter()
        await models.embedder.embed(texts, priority=Priority.BULK)
        raw = count / (time.perf_counter() - started)
    finally:
        await models.stop()
    rate = count / seconds
    print(f"searchable {rate:,.0f} memories/s, raw encode {raw:,.0f} texts/s, loop lag p99 {lag_ms:.1f} ms")
    print(f"ingest_searchable_ratio: {rate / raw:.2f} (goal 0.85 of raw batched encode)")
