"""A server to measure: one that runs already, or a child process on a temporary directory."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from clag.v1 import admin_service_pb2 as admin_pb
from clag_client import AsyncClient, ClagError

from clag_eval.stored import EvaluationError

__all__ = ["ServerChoice", "served"]

_START_S: Final = 300.0
_STOP_S: Final = 60.0
_POLL_S: Final = 0.1
_LOG_LINES: Final = 12


@dataclass(frozen=True, slots=True)
class ServerChoice:
    """Where servers come from.

    Attributes:
        addresses: By layout (see `methods.LAYOUTS`), servers that run already. Where there is any, none is started,
            and methods whose layout has none are left out.
        token: Bearer token of these servers.
        settings: Settings, by dotted name, of servers that are started; over the product's defaults.
        slm: Name of their language model; empty for none, None for the product's default.
    """

    addresses: Mapping[str, str] = field(default_factory=dict)
    token: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    slm: str | None = None


@asynccontextmanager
async def served(choice: ServerChoice, layout: str) -> AsyncIterator[AsyncClient]:
    """Connect to the server of a layout, starting one where none is given.

    Raises:
        EvaluationError: It cannot be started or reached.
    """
    if choice.addresses:
        async with AsyncClient(choice.addresses[layout], token=choice.token) as client:
            await _ready(client, None)
            yield client
        return
    with tempfile.TemporaryDirectory(prefix="clag-eval-", ignore_cleanup_errors=True) as name:
        root = Path(name)
        log = root / "server.log"
        child = _started(choice, layout, root, log)
        try:
            async with AsyncClient(f"unix:{root / 's'}") as client:
                await _ready(client, child)
                yield client
        except (EvaluationError, ClagError) as error:
            told = log.read_text("utf-8", errors="replace").splitlines()[-_LOG_LINES:]
            raise EvaluationError("\n".join([str(error), *told])) from error
        finally:
            _stop(child)


def _started(choice: ServerChoice, layout: str, root: Path, log: Path) -> subprocess.Popen[bytes]:
    settings = {
        "server.socket": str(root / "s"),
        "storage.data_dir": str(root / "data"),
        "organize.strategy": layout,
        "organize.probe_auto": "false",  # probed at a known moment, not beside the first memories
        "log.level": "warning",
        **({} if choice.slm is None else {"models.slm": choice.slm}),
        **choice.settings,
    }
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CLAG_")}
    environment["XDG_CONFIG_HOME"] = str(root / "no-config")
    environment["XDG_RUNTIME_DIR"] = str(root)
    for key, value in settings.items():
        environment["CLAG_" + key.upper().replace(".", "__")] = value
    with log.open("ab") as out:
        command = [sys.executable, "-m", "clag_server.server"]
        return subprocess.Popen(command, env=environment, stdout=out, stderr=out)


async def _ready(client: AsyncClient, child: subprocess.Popen[bytes] | None) -> None:
    """Wait until the server answers and its models are loaded."""
    deadline = asyncio.get_running_loop().time() + _START_S
    while True:
        why = "its models are still loading"
        try:
            info = await client.server_info(timeout_s=10.0)
        except ClagError as error:
            why = error.message
            if child is None and error.retry_after_s is None:
                raise EvaluationError(f"the server cannot be reached: {error.message}") from None
        else:
            if admin_pb.MODEL_STATE_LOADING not in (info.embedder.state, info.slm.state):
                return
        if child is not None and child.poll() is not None:
            raise EvaluationError(f"the server ended with {child.returncode}:")
        if asyncio.get_running_loop().time() > deadline:
            raise EvaluationError(f"the server is not ready after {_START_S:g} s: {why}")
        await asyncio.sleep(_POLL_S)


def _stop(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
    try:
        child.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait(_STOP_S)
