"""A real server inside the benchmark's process, so that its event loop can be sampled; clients are processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc

from clag_server.server import run
from clag_server.settings import load

_SAMPLE_S = 0.002


@dataclass(slots=True)
class LoopLag:
    """How late a timer of the event loop fires, sampled all the time, in seconds."""

    samples: list[float] = field(default_factory=list)

    async def sample(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _SAMPLE_S
            await asyncio.sleep(_SAMPLE_S)
            self.samples.append(max(0.0, loop.time() - due))

    def p99_ms(self) -> float:
        return float(np.percentile(self.samples, 99) * 1000) if self.samples else 0.0


@dataclass(slots=True)
class RunningServer:
    """Address of the server, its data directory, and the lag of the loop that it shares with the benchmark."""

    address: str
    data_dir: Path
    lag: LoopLag


@asynccontextmanager
async def running_server(root: Path, settings: dict[str, object] | None = None) -> AsyncIterator[RunningServer]:
    """Serve from `root / "data"` in this process until the block ends; then drain as on SIGTERM."""
    socket = root / "s" / "clag.sock"
    flags = {
        "storage.data_dir": root / "data",
        "server.socket": socket,
        "log.level": "warning",
        **(settings or {}),
    }
    serving = asyncio.create_task(run(load(flags)))
    lag = LoopLag()
    sampling = asyncio.create_task(lag.sample())
    try:
        await _ready(f"unix:{socket}", serving)
        lag.samples.clear()
        yield RunningServer(f"unix:{socket}", root / "data", lag)
    finally:
        sampling.cancel()
        os.kill(os.getpid(), signal.SIGTERM)
        await serving


@contextmanager
def temporary_root() -> Iterator[Path]:
    """A directory for one benchmark, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="clag-bench-") as name:
        yield Path(name)


async def _ready(address: str, serving: asyncio.Task[int]) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        while not serving.done():
            try:
                answer = await health.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=120)
            except grpc.RpcError:
                continue
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                return
            await asyncio.sleep(0.05)
    raise RuntimeError(f"the server ended with exit code {serving.result()}")


async def in_process(module: str, arguments: Sequence[str]) -> str:
    """Run `python -m module arguments` beside the server and return the last line that it prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"{module} ended with exit code {process.returncode}")
    return output.decode().strip().splitlines()[-1]
