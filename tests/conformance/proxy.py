"""A network that fails: a TCP proxy that cuts, refuses, delays, and goes silent without closing."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from enum import StrEnum
from typing import Self

__all__ = ["Mode", "Proxy"]

_READ_BYTES = 64 * 1024


class Mode(StrEnum):
    """What the proxy does.

    PASS forwards; REFUSE closes every new connection at once; SILENT takes everything and forwards nothing, as a
    connection does that is half open.
    """

    PASS = "pass"
    REFUSE = "refuse"
    SILENT = "silent"


class Proxy:
    """Forwards connections to one TCP port.

    Args:
        port: where to, on the loopback address.

    Attributes:
        mode: what happens to what comes in from now on.
        delay_s: how long each piece is held back, in seconds.
        connections: how many were made through it.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self.mode = Mode.PASS
        self.delay_s = 0.0
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Reset every connection."""
        for writer in tuple(self._open):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._open.add(writer)
        try:
            if self.mode is Mode.REFUSE:
                return
            self.connections += 1
            with suppress(OSError):
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
                self._open.add(far_writer)
                try:
                    async with asyncio.TaskGroup() as group:
                        group.create_task(self._forward(reader, far_writer))
                        group.create_task(self._forward(far_reader, writer))
                finally:
                    self._open.discard(far_writer)
                    far_writer.transport.abort()
        except asyncio.CancelledError:
            return  # the proxy ends
        finally:
            self._open.discard(writer)
            writer.transport.abort()
            self._tasks.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await reader.read(_READ_BYTES):
                if self.mode is Mode.SILENT:
                    continue
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                writer.write(piece)
                await writer.drain()
        writer.transport.abort()
