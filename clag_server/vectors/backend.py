"""The process or server behind the index, and the threads that talk to it.

A `Session` is one life of the backend: for Milvus Lite from one start of the child to its end, for a server the
whole run. Whoever uses a session looks at `lost` after each call, because calls that were retried across a restart
say nothing about what the next life remembers.
"""

from __future__ import annotations

import asyncio
import functools
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar

import structlog

from clag_server.catalog.api import IndexFeed
from clag_server.children import ChildState, ChildStatus, Launch, SupervisedProcess
from clag_server.vectors.address import MilvusServer
from clag_server.vectors.errors import BackendAwayError, BackendFaultError
from clag_server.vectors.milvus import Flavor, MilvusConnection, preload, preloaded
from clag_server.vectors.partitions import collection_name, owner_mark
from clag_server.vectors.settings import IndexSettings

__all__ = ["MilvusBackend", "Session"]

_log = structlog.get_logger("clag.vectors")

P = ParamSpec("P")
T = TypeVar("T")

_SOCKET_PATH_BYTES = 90  # the kernel's limit is 108, ours leaves room for the file's name
_PRELOAD_AFTER_S = 2.0
"""Pause before the client library is imported: a second in which the loop answers little, so questions go first."""
_READERS = 4
_WRITERS = 2


@dataclass(slots=True, eq=False)
class Session:
    """One life of the backend. `lost` is set when it is over."""

    connection: MilvusConnection
    lost: asyncio.Event = field(default_factory=asyncio.Event)


class MilvusBackend:
    """Keeps a session to Milvus Lite (a supervised child on `folder`) or to a server.

    Args:
        folder: `<data>/index`, ours alone.
        feed: The catalog, open before `start`: its name keeps its collections on a server apart from others'.
        server: A Milvus server; None runs the child.
        settings: Timeouts.
        on_change: Called on the event loop after a session came or went.
    """

    def __init__(
        self,
        folder: Path,
        *,
        feed: IndexFeed,
        server: MilvusServer | None,
        settings: IndexSettings,
        on_change: Callable[[], None],
    ) -> None:
        self.flavor = Flavor.SERVER if server else Flavor.LITE
        self._folder = folder
        self._feed = feed
        self._server = server
        self._settings = settings
        self._on_change = on_change
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="clag-index-read")
        self._writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="clag-index-write")
        self._up = asyncio.Event()
        self._session: Session | None = None
        self._sockets: Path | None = None
        self._starts = 0
        self._purge: set[int] = set()
        self._child: SupervisedProcess | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._reason = "not started"
        self._preloading: asyncio.Task[None] | None = None

    @property
    def session(self) -> Session | None:
        """The present session, None while the backend is away."""
        return self._session

    @property
    def reason(self) -> str:
        """Why there is no session; empty when there is one."""
        return "" if self._session is not None else self._reason

    async def start(self) -> None:
        """Start the child or begin to connect; returns at once. Raises OSError for an unusable folder."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Beside the child's start; but the server's own start, busy enough, and its first questions come first.
        self._preloading = asyncio.create_task(self._preload(), name="import the index client")
        if self._server is not None:
            connecting = self._connect(self._server, owner_mark(self._feed.catalog_id))
            self._connecting = asyncio.create_task(connecting, name="connect to milvus")
            return
        self._sockets = self._socket_folder()
        self._child = SupervisedProcess(
            "vector index",
            "clag_server.vectors.lite_child",
            ["--data-dir", str(self._folder / "lite")],
            # One search is a few small products: more threads only get into each other's way.
            {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            on_launch=self._launch,
            on_ready=self._ready,
            on_change=self._child_changed,
        )
        await self._child.start()

    async def stop(self) -> None:
        """Stop the child or disconnect, and end the threads."""
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        if self._child is not None:
            await self._child.stop()
        # After those that wait for it.
        if self._preloading is not None:
            self._preloading.cancel()
            await asyncio.gather(self._preloading, return_exceptions=True)
        self._lose("stopped")
        if self._sockets is not None and self._sockets != self._folder:
            shutil.rmtree(self._sockets, ignore_errors=True)
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._writers.shutdown(wait=False, cancel_futures=True)

    async def wait_up(self) -> Session:
        """Wait until there is a session and return it."""
        while self._session is None:
            await self._up.wait()
        return self._session

    async def restart(self, session: Session, reason: str) -> None:
        """End a session that does not answer; the child is killed and started again."""
        if self._child is not None and self._session is session:
            _log.warning("restarting the vector index", reason=reason)
            await self._child.restart(reason)

    async def purge(self, session: Session, ns: int) -> None:
        """Have the child restarted without the files of a collection that can neither be opened nor dropped."""
        self._purge.add(ns)
        await self.restart(session, f"collection {collection_name(ns)} cannot be opened")

    async def read(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking read in a reader thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, functools.partial(call, *args, **kwargs))

    async def write(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking write in a writer thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._writers, functools.partial(call, *args, **kwargs))

    # --- the child
    async def _preload(self) -> None:
        if not preloaded():
            await asyncio.sleep(_PRELOAD_AFTER_S)
            await self.write(preload)

    def _socket_folder(self) -> Path:
        if len(bytes(self._folder)) <= _SOCKET_PATH_BYTES:
            return self._folder
        return Path(tempfile.mkdtemp(prefix="clag-"))

    def _launch(self) -> Launch:
        # A new name for each start: a client never reconnects by itself into a life it does not know.
        for old in self._socket_files():
            old.unlink(missing_ok=True)
        self._starts += 1
        purge = [part for ns in sorted(self._purge) for part in ("--purge", collection_name(ns))]
        self._purge.clear()
        return Launch(args=["--socket", str(self._socket_path(self._starts)), *purge])

    def _socket_path(self, number: int) -> Path:
        return (self._sockets or self._folder) / f"lite{number}.sock"

    def _socket_files(self) -> list[Path]:
        return list((self._sockets or self._folder).glob("lite*.sock"))

    async def _ready(self, info: dict[str, object]) -> None:
        try:
            await self._open_session(MilvusServer(str(info["uri"])), "")
        except (BackendAwayError, BackendFaultError) as error:
            raise OSError(str(error)) from error

    def _child_changed(self, status: ChildStatus) -> None:
        if status.state is not ChildState.READY:
            self._lose(status.reason or status.state.value)

    # --- sessions
    async def _connect(self, server: MilvusServer, owner: str) -> None:
        delay_s = self._settings.first_retry_s
        while True:
            try:
                await self._open_session(server, owner)
            except (BackendAwayError, BackendFaultError) as error:
                self._reason = str(error)
                _log.warning("cannot connect to milvus", error=str(error), retry_after_s=delay_s)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, self._settings.max_retry_s)
            else:
                return

    async def _open_session(self, server: MilvusServer, owner: str) -> None:
        if self._preloading is not None:
            await asyncio.shield(self._preloading)
        connection = MilvusConnection(
            server,
            self.flavor,
            owner=owner,
            read_timeout_s=self._settings.read_timeout_s,
            write_timeout_s=self._settings.write_timeout_s,
        )
        await self.write(connection.connect)
        self._session = Session(connection)
        self._up.set()
        self._on_change()

    def _lose(self, reason: str) -> None:
        self._reason = reason
        session, self._session = self._session, None
        self._up.clear()
        if session is None:
            return
        session.lost.set()
        # Wakes the threads that still wait for an answer of the old life.
        session.connection.close()
        self._on_change()
