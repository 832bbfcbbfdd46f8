"""A worker client on a worker that holds no model, and what tests wait for."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clag_server.children import RestartPolicy
from clag_server.models.api import (
    ChoiceOption,
    EngineState,
    ModelUnavailableError,
    Priority,
)
from clag_server.models.client import WorkerClient
from clag_server.models.worker_embedder import WorkerEmbedder
from clag_server.models.worker_settings import WorkerSettings
from clag_server.models.worker_slm import WorkerSlm

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

REPOSITORY = Path(__file__).resolve().parents[2]
NOW, LATER, BULK = Priority.INTERACTIVE, Priority.ORGANIZE, Priority.BULK
OPTIONS = [ChoiceOption("a", "aaa"), ChoiceOption("b", "b")]


@dataclass
class Rig:
    folder: Path
    clients: list[WorkerClient]
    embedder: WorkerEmbedder
    slm: WorkerSlm

    def release(self) -> None:
        (self.folder / "release").touch()

    def taken(self) -> list[tuple[str, int | None, list[str]]]:
        log = self.folder / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [tuple(json.loads(line)) for line in lines]

    async def until_taken(self, text: str) -> None:
        async with asyncio.timeout(30):
            while not any(text in texts for _, _, texts in self.taken()):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.005)


QUICK = RestartPolicy(first_delay_s=0.01, max_delay_s=0.02)
SLOW = RestartPolicy(first_delay_s=60.0)


@asynccontextmanager
async def rig(
    folder: Path, hang_timeout_s: float = 60.0, workers: int = 1, limit_mib: int = 0, slow_restart: bool = False
) -> AsyncIterator[Rig]:
    settings = WorkerSettings("e", "s", "cpu", "float32", 0, 256, 1, 0, 64, 64, 0, 1, 256, 0, 0)
    clients = [
        WorkerClient(
            settings,
            hang_timeout_s=hang_timeout_s,
            memory_limit_bytes=limit_mib << 20,
            module="tests.models.fake_worker",
            env={"FAKE_WORKER_FOLDER": str(folder), "PYTHONPATH": str(REPOSITORY)},
            policy=SLOW if slow_restart else QUICK,
        )
        for _ in range(workers)
    ]
    embedder = WorkerEmbedder(clients, name="e", dim=2, fingerprint="f", window_tokens=256)
    slm = WorkerSlm(clients, name="s")
    for client in clients:
        await client.start()
    try:
        yield Rig(folder, clients, embedder, slm)
    finally:
        for client in clients:
            await client.stop()


def loaded_again(r: Rig, before: int) -> bool:
    return r.embedder.status.loads > before


async def until(true: Callable[[], bool]) -> None:
    """Wait for another process."""
    async with asyncio.timeout(30):
        while not true():  # noqa: ASYNC110 - another process has no event
            await asyncio.sleep(0.005)


async def until_loaded(r: Rig) -> None:
    """Wait until the worker that was started last has loaded its models."""
    await until(lambda: r.slm.status.state is EngineState.READY)


async def embed_until_answered(r: Rig, text: str) -> list[list[float]]:
    """Do what callers do: try again when the error says so."""
    async with asyncio.timeout(30):
        while True:
            try:
                vectors = await r.embedder.embed([text], priority=LATER)
            except ModelUnavailableError:
                await asyncio.sleep(0.05)
            else:
                rows: list[list[float]] = vectors.tolist()
                return rows
