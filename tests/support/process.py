"""A real server in a process of its own, with real stores in a temporary directory, for tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import grpc
from clag.v1 import admin_service_pb2_grpc, cluster_service_pb2_grpc, memory_service_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0


class ServerFailed(AssertionError):
    """The server ended, or did not become ready."""


@dataclass(frozen=True, slots=True)
class Stubs:
    """A channel and the stubs on it."""

    channel: grpc.Channel
    memory: memory_service_pb2_grpc.MemoryServiceStub = field(init=False)
    cluster: cluster_service_pb2_grpc.ClusterServiceStub = field(init=False)
    admin: admin_service_pb2_grpc.AdminServiceStub = field(init=False)
    health: health_pb2_grpc.HealthStub = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory", memory_service_pb2_grpc.MemoryServiceStub(self.channel))
        object.__setattr__(self, "cluster", cluster_service_pb2_grpc.ClusterServiceStub(self.channel))
        object.__setattr__(self, "admin", admin_service_pb2_grpc.AdminServiceStub(self.channel))
        object.__setattr__(self, "health", health_pb2_grpc.HealthStub(self.channel))


class ServerProcess:
    """Starts `python -m clag_server.server` with settings from the environment.

    Args:
        root: Directory of data and logs; a restart on the same root finds the same memories.
        settings: By dotted name, over the defaults of tests.
    """

    def __init__(self, root: Path, settings: Mapping[str, str] | None = None) -> None:
        self.root = root
        # Socket paths are short: pytest's own directories can be too long for them.
        self._socket_dir = Path(tempfile.mkdtemp(prefix="clag-"))
        self.runtime_dir = self._socket_dir
        """Where servers of one user find each other's locks; servers have one each unless a test sets it."""
        self.data_dir = root / "data"
        self.log_path = root / "server.log"
        self._settings = {
            "server.socket": str(self._socket_dir / "s"),
            "storage.data_dir": str(self.data_dir),
            "models.backend": "scripted",
            "models.script": str(root / "script.json"),
            "log.format": "json",
            # To the scripted embedder the date that every text begins with is a third of a short text.
            "organize.cluster_cosine": "0.45",
            # Tests count what the scripted model is asked; those of the probe switch it on.
            "organize.probe_auto": "false",
            **(settings or {}),
        }
        self.socket = Path(self._settings["server.socket"])
        self._process: subprocess.Popen[bytes] | None = None
        self._channels: list[grpc.Channel] = []

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return self.log_path.read_text("utf-8") if self.log_path.exists() else ""

    def spawn(self) -> Self:
        """Start the process and do not wait."""
        self.root.mkdir(parents=True, exist_ok=True)
        script = Path(self._settings["models.script"])
        if self._settings["models.backend"] == "scripted" and not script.exists():
            script.write_text("{}", encoding="utf-8")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("CLAG_")}
        environment["XDG_RUNTIME_DIR"] = str(self.runtime_dir)
        environment["XDG_CONFIG_HOME"] = str(self.root / "no-config")
        for key, value in self._settings.items():
            environment["CLAG_" + key.upper().replace(".", "__")] = value
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "clag_server.server"], env=environment, stdout=log, stderr=log
            )
        return self

    def start(self) -> Self:
        """Start the process and wait until health says that everything serves."""
        self.spawn()
        deadline = time.monotonic() + START_TIMEOUT_S
        health = self.connect().health
        while time.monotonic() < deadline:
            if self._process is not None and self._process.poll() is not None:
                raise ServerFailed(f"the server exited with {self._process.returncode}:\n{self.log}")
            try:
                for update in health.Watch(
                    health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=deadline - time.monotonic()
                ):
                    if update.status == health_pb2.HealthCheckResponse.SERVING:
                        return self
            except grpc.RpcError:
                continue
        raise ServerFailed(f"the server was not ready within {START_TIMEOUT_S} s:\n{self.log}")

    def connect(self, target: str = "", credentials: grpc.ChannelCredentials | None = None) -> Stubs:
        """Stubs on a new channel, to the socket unless a target is given."""
        options = (("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 50))
        address = target or f"unix:{self.socket}"
        channel = (
            grpc.insecure_channel(address, options=options)
            if credentials is None
            else grpc.secure_channel(address, credentials, options=options)
        )
        self._channels.append(channel)
        return Stubs(channel)

    def wait(self) -> int:
        """Wait until the process ended by itself; returns the exit code."""
        assert self._process is not None
        return self._process.wait(STOP_TIMEOUT_S)

    def terminate(self) -> int:
        """SIGTERM, then wait; returns the exit code."""
        self.send(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """SIGKILL, then wait: nothing of the process gets to run."""
        self.send(signal.SIGKILL)
        self.wait()

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def close(self) -> None:
        """End whatever is left."""
        for channel in self._channels:
            channel.close()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)
        shutil.rmtree(self._socket_dir, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
