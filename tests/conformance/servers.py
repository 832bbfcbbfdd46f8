"""The real servers that scenarios talk to: shared where settings are the same, lent where they are killed."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.conformance.certificates import Certificates
from tests.conformance.scenario import ServerKind
from tests.support.process import ServerProcess, Stubs

__all__ = ["Server", "Servers"]

TOKEN = "conformance-0123456789abcdef0123456789"  # of servers that live for a minute


class Server:
    """A running server.

    Args:
        process: it.
        port: its TCP port.
        script: the file that its models follow.

    Attributes:
        stubs: the driver's own connection to it.
    """

    def __init__(self, process: ServerProcess, port: int, script: Path) -> None:
        self.port = port
        self._process = process
        self._script = script
        self._running = False
        self.stubs: Stubs = process.connect()

    @property
    def variables(self) -> dict[str, Any]:
        """What scenarios may say of it."""
        return {
            "unix": f"unix:{self._process.socket}",
            "path": str(self._process.socket),
            "tcp": f"127.0.0.1:{self.port}",
            "port": self.port,
            "token": TOKEN,
        }

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return self._running

    async def start(self) -> None:
        """Start it, also after it was killed: on the same data, socket and port."""
        await asyncio.to_thread(self._process.start)
        self._running = True

    async def kill(self) -> None:
        """Kill it: nothing of it gets to run."""
        self._running = False
        await asyncio.to_thread(self._process.kill)

    async def terminate(self) -> None:
        """Ask it to end and wait for that."""
        self._running = False
        await asyncio.to_thread(self._process.terminate)

    def ask_to_end(self) -> None:
        """Ask it to end and go on."""
        self._process.send(signal.SIGTERM)

    async def ended(self) -> None:
        """Wait until it ends that was asked to."""
        self._running = False
        await asyncio.to_thread(self._process.wait)

    def follow(self, script: dict[str, Any]) -> None:
        """Change what its models do."""
        fresh = self._script.with_suffix(".new")
        fresh.write_text(json.dumps(script), encoding="utf-8")
        fresh.replace(self._script)

    async def close(self) -> None:
        """End it, however it is."""
        await asyncio.to_thread(self._process.close)


class Servers:
    """All servers of a run.

    Args:
        folder: where their data is.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shared: dict[str, Server] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._made = 0
        self.certificates = Certificates(folder)
        self._token = folder / "token"
        self._token.touch(0o600)
        self._token.write_text(TOKEN, encoding="ascii")

    async def shared(self, kind: ServerKind) -> Server:
        """Return the server of these settings; started when it is first asked for."""
        key = json.dumps([dict(kind.settings), kind.tls], sort_keys=True)
        async with self._locks.setdefault(key, asyncio.Lock()):
            if key not in self._shared:
                self._shared[key] = await self.fresh(kind)
        return self._shared[key]

    @asynccontextmanager
    async def alone(self, kind: ServerKind) -> AsyncIterator[Server]:
        """Lend the server of these settings to one scenario at a time; it runs and follows the script.

        One whose scenario fails is not lent again: what it is left with must not fail the next.
        """
        key = json.dumps([dict(kind.settings), kind.tls, "alone"], sort_keys=True)
        async with self._locks.setdefault(key, asyncio.Lock()):
            if key not in self._shared:
                self._shared[key] = await self.fresh(kind)
            server = self._shared[key]
            server.follow(dict(kind.script))
            if not server.running:
                await server.start()
            try:
                yield server
            except BaseException:
                del self._shared[key]
                await server.close()
                raise

    async def fresh(self, kind: ServerKind) -> Server:
        """Start a server; who asks closes it."""
        self._made += 1
        root = self._folder / f"server-{self._made}"
        root.mkdir()
        script = root / "script.json"
        script.write_text(json.dumps(dict(kind.script)), encoding="utf-8")
        port = _free_port()
        settings = {"server.tcp": f"127.0.0.1:{port}", "server.token_file": str(self._token)}
        if kind.tls:
            settings["server.tls_cert"] = str(self.certificates.server_certificate)
            settings["server.tls_key"] = str(self.certificates.server_key)
        if kind.tls == "mtls":
            settings["server.tls_client_ca"] = str(self.certificates.client_authority)
        settings |= {key: str(value) for key, value in kind.settings.items()}
        server = Server(ServerProcess(root, settings), port, script)
        try:
            await server.start()
        except BaseException:
            await server.close()
            raise
        return server

    async def close(self) -> None:
        """End all shared ones."""
        await asyncio.gather(*(server.close() for server in self._shared.values()))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
