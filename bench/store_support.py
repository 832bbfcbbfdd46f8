"""A real server in a process of its own that can be watched, paused and killed with its children.

The benchmarks of the store (`crash`, `faults`, `scale`) start it on one data directory again and again. It is the
server that `clag serve` runs, with scripted models; `bench.store_support_server` says what it can change beyond the
settings.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import grpc
import psutil
from clag.v1 import admin_service_pb2 as admin_pb
from clag_client import AsyncClient, ClagError, RetryPolicy
from grpc_health.v1 import health_pb2, health_pb2_grpc

START_S: Final = 90.0
STOP_S: Final = 40.0
POLL_S: Final = 0.01
INDEX_CHILD: Final = "clag_server.vectors.lite_child"
MODEL_CHILD: Final = "clag_server.models.worker"

_CHANNEL = (("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 50))


class ServerGone(Exception):
    """The server ended by itself, or did not become ready; the message ends with its last log lines."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """What the server is given beyond settings.

    Attributes:
        dim: Numbers in an embedding of the scripted model.
        index: Sizes and times of the vector index, by the names of `vectors.settings.IndexSettings`.
        clock: File with seconds that the server adds to its wall clock, read at each look; "" for none.
    """

    dim: int = 64
    index: Mapping[str, float] = field(default_factory=dict)
    clock: str = ""


class StoreServer:
    """One data directory and the server process on it, one at a time.

    Args:
        root: Directory of data, log and socket; a restart on the same root finds the same memories.
        settings: By dotted name, over those of the benchmarks.
        knobs: See `Knobs`.
        prefix: Command that the server's is appended to (`prlimit`, `unshare`).
    """

    def __init__(
        self,
        root: Path,
        settings: Mapping[str, str] | None = None,
        *,
        knobs: Knobs | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        self.root = root
        self.data_dir = root / "data"
        self.catalog = self.data_dir / "catalog.db"
        self.log_path = root / "server.log"
        self.prefix = tuple(prefix)
        # A socket's path is short, a temporary directory's may not be.
        self._sockets = Path(tempfile.mkdtemp(prefix="clag-"))
        self.address = f"unix:{self._sockets / 's'}"
        self.settings = {
            "server.socket": str(self._sockets / "s"),
            "storage.data_dir": str(self.data_dir),
            "models.backend": "scripted",
            "models.script": str(root / "script.json"),
            "log.format": "json",
            **(settings or {}),
        }
        self.knobs = knobs or Knobs()
        """Of the next start."""
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerGone("the server was never started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def log_tail(self, lines: int = 12) -> str:
        text = self.log_path.read_text("utf-8", errors="replace") if self.log_path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    # --- life
    async def spawn(self) -> None:
        """Start the process and do not wait."""
        self._prepare()
        environment = {key: value for key, value in os.environ.items() if not key.startswith("CLAG_")}
        environment |= {"XDG_RUNTIME_DIR": str(self._sockets), "XDG_CONFIG_HOME": str(self.root / "no-config")}
        for key, value in self.settings.items():
            environment["CLAG_" + key.upper().replace(".", "__")] = value
        knobs = json.dumps(asdict(self.knobs))
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.prefix,
                sys.executable,
                "-m",
                "bench.store_support_server",
                knobs,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _prepare(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        script = Path(self.settings["models.script"])
        if not script.exists():
            script.write_text("{}", encoding="utf-8")

    async def start(self) -> float:
        """Start the process and wait until it serves; returns the seconds that took."""
        started = time.perf_counter()
        await self.spawn()
        await self.serving()
        return time.perf_counter() - started

    async def serving(self, timeout_s: float = START_S) -> None:
        """Wait until health says SERVING. Raises ServerGone."""
        async with grpc.aio.insecure_channel(self.address, options=_CHANNEL) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            deadline = time.monotonic() + timeout_s
            while time.monotonic() < deadline and self.running:
                with contextlib.suppress(grpc.RpcError):
                    answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=5)
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        return
                await asyncio.sleep(POLL_S)
        how = "did not serve in time" if self.running else f"ended with {self._returncode()}"
        raise ServerGone(f"the server {how}:\n{self.log_tail()}")

    async def exited(self, timeout_s: float = STOP_S) -> int:
        """Wait until the process ended by itself; returns the exit code."""
        if self._process is None:
            raise ServerGone("the server was never started")
        async with asyncio.timeout(timeout_s):
            return await self._process.wait()

    async def stop(self) -> None:
        """End in order (SIGTERM). Raises ServerGone when that fails."""
        if self.running:
            os.kill(self.pid, signal.SIGTERM)
            code = await self.exited()
            if code != 0:
                raise ServerGone(f"the server ended with {code}:\n{self.log_tail()}")

    def _returncode(self) -> int | None:
        return None if self._process is None else self._process.returncode

    # --- violence
    def family(self) -> list[psutil.Process]:
        """The server and its children, as far as they run."""
        try:
            server = psutil.Process(self.pid)
            return [server, *server.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def child(self, module: str) -> psutil.Process | None:
        """The child that runs a module (`INDEX_CHILD`, `MODEL_CHILD`)."""
        for process in self.family()[1:]:
            with contextlib.suppress(psutil.Error):
                if module in process.cmdline():
                    return process
        return None

    async def power_cut(self) -> None:
        """SIGKILL everything at one moment: paused first, so that nobody sees another one's end."""
        family = self.family()
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
        await self.exited()

    async def kill(self) -> None:
        """SIGKILL the server alone; its children find out by themselves."""
        children = self.family()[1:]
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        await self.exited()
        await asyncio.to_thread(psutil.wait_procs, children, STOP_S)

    async def close(self) -> None:
        """End whatever is left and remove the socket's directory."""
        if self.running:
            await self.power_cut()
        shutil.rmtree(self._sockets, ignore_errors=True)

    # --- looking
    def rss_mib(self) -> tuple[float, float]:
        """Resident memory of the server and of its children together, in MiB."""
        sizes = []
        for process in self.family():
            with contextlib.suppress(psutil.Error):
                sizes.append(process.memory_info().rss / 2**20)
        return (sizes[0], sum(sizes[1:])) if sizes else (0.0, 0.0)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[AsyncClient]:
        """A client that looks for the server quickly when it goes away."""
        retry = RetryPolicy(reconnect_budget_s=START_S, first_pause_s=0.05, longest_pause_s=0.2)
        async with AsyncClient(self.address, retry=retry) as client:
            # A connection to an address that refused one lately waits before it tries again.
            async with asyncio.timeout(START_S):
                while not await _answers(client):  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(POLL_S)
            yield client


async def _answers(client: AsyncClient) -> bool:
    try:
        await client.server_info(timeout_s=5)
    except ClagError as error:
        if error.code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            raise
        return False
    return True


async def index_ready(client: AsyncClient, namespace: str, timeout_s: float = START_S) -> admin_pb.GetStatsResponse:
    """Wait until the index of a namespace is READY and has applied everything; returns the stats then."""
    return await settled(client, namespace, (admin_pb.STAGE_INDEX,), timeout_s, index=True)


async def settled(
    client: AsyncClient,
    namespace: str,
    stages: Sequence[admin_pb.Stage.ValueType],
    timeout_s: float = START_S,
    *,
    index: bool = False,
    poll_s: float = 0.1,
) -> admin_pb.GetStatsResponse:
    """Wait until nothing waits before the stages (and, with `index`, until the index is READY)."""
    async with asyncio.timeout(timeout_s):
        while True:
            try:
                stats = await client.stats(namespace)
            except ClagError as error:
                if error.code is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise
                continue  # the machine is busy with what is waited for
            waiting = sum(one.pending for one in stats.backlog if one.stage in stages)
            if not waiting and (not index or stats.index.state == admin_pb.INDEX_STATE_READY):
                return stats
            await asyncio.sleep(poll_s)


@contextlib.contextmanager
def kept_on_failure(name: str) -> Iterator[Path]:
    """A directory for one benchmark: removed at the end, kept and named when the block fails."""
    root = Path(tempfile.mkdtemp(prefix=f"clag-{name}-"))
    try:
        yield root
    except BaseException:
        print(f"{name}: the data directory is kept: {root}", file=sys.stderr)
        raise
    shutil.rmtree(root, ignore_errors=True)
