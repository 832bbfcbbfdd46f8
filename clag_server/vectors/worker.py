"""The index worker of one namespace: keeps its collection in step with the catalog, through every failure.

One task per namespace:

    wait for the backend -> open: load, catch up, compare with the catalog -> READY: write batches, read it through
                              | anything does not fit                           | the backend answers with an error,
                              v                                                 v  or holds something else
                            REBUILDING from the catalog  <----------------  DEGRADED, after a delay

While it is not READY searches scan the catalog (`vectors.scan`), so the worker can take its time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

import structlog

from clag_server.catalog.api import IndexFeed, IndexOp
from clag_server.types.errors import StorageFailed
from clag_server.vectors.api import IndexState, IndexStatus
from clag_server.vectors.backend import MilvusBackend, Session
from clag_server.vectors.contents import ContentCheck
from clag_server.vectors.errors import BackendAwayError, BackendFaultError, RebuildWantedError
from clag_server.vectors.milvus import Flavor
from clag_server.vectors.opening import catch_up, rebuild, why_not_usable
from clag_server.vectors.outbox import Outbox
from clag_server.vectors.partitions import PartitionLayout
from clag_server.vectors.record import IndexRecord, RecordFile
from clag_server.vectors.settings import IndexSettings
from clag_server.vectors.writer import CollectionWriter

__all__ = ["IndexWorker"]

_log = structlog.get_logger("clag.vectors")


class IndexWorker:
    """Applies one namespace's outbox to its collection.

    Args:
        ns: The namespace.
        dim: Length of its vectors.
        feed: The catalog.
        backend: Where sessions come from.
        folder: Where the record file is.
        settings: Sizes and times.
    """

    def __init__(
        self,
        ns: int,
        dim: int,
        *,
        feed: IndexFeed,
        backend: MilvusBackend,
        folder: Path,
        settings: IndexSettings,
    ) -> None:
        self.ns = ns
        self.dim = dim
        self.layout = PartitionLayout(settings.partitions, settings.shared_partitions)
        self.ready_session: Session | None = None
        """The session that may be searched; None unless READY."""
        lag_s = settings.visible_after_s if backend.flavor is Flavor.SERVER else 0.0
        self.outbox = Outbox(ns, feed, settings, visible_after_s=lag_s)
        self._feed = feed
        self._backend = backend
        self._settings = settings
        self._file = RecordFile(folder, ns)
        self._state = IndexState.STARTING
        self._reason = "waiting for the backend"
        self._done = 0
        self._total = 0
        self._rebuild_reason = ""
        self._stopping = False
        self._hurry = False
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._checking: asyncio.Task[None] | None = None

    @property
    def status(self) -> IndexStatus:
        """The newest status."""
        return IndexStatus(self._state, self._reason, self._done, self._total, self.outbox.backlog)

    def start(self) -> None:
        """Start the task."""
        self._task = asyncio.create_task(self._run(), name=f"index worker {self.ns}")
        self._task.add_done_callback(self._ended)

    async def stop(self, timeout_s: float) -> None:
        """Write what is pending within `timeout_s`, then end the task; what is left stays in the outbox."""
        self._stopping = True
        self._wake.set()
        if self._task is None:
            return
        if timeout_s > 0 and self._state is IndexState.READY:
            await asyncio.wait([self._task], timeout=timeout_s)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def notify(self) -> None:
        """Say that the outbox has news."""
        self.outbox.news = True
        self._wake.set()

    def backend_changed(self) -> None:
        """Say that the backend's session came or went."""
        if self.ready_session is not None and self.ready_session.lost.is_set():
            self._set(IndexState.STARTING, self._backend.reason)
        self._wake.set()

    def want_rebuild(self, reason: str) -> None:
        """Have the collection rebuilt from the catalog."""
        self._rebuild_reason = reason
        self._wake.set()

    async def settle(self) -> None:
        """Wait until the worker is READY and all that was announced so far is durable, without its usual pause."""
        while (
            self._rebuild_reason or self._state is not IndexState.READY or self.outbox.backlog or self.outbox.news
        ):
            self._hurry = True
            self._wake.set()
            await self._changed.wait()

    async def wait_for(self, *states: IndexState) -> IndexStatus:
        """Wait until the worker is in one of the states and return its status."""
        while self._state not in states:
            await self._changed.wait()
        return self.status

    # --- the task
    async def _run(self) -> None:
        delay_s = self._settings.first_retry_s
        while not self._stopping:
            session = await self._backend.wait_up()
            try:
                writer, rebuilt = await self._open(session)
                delay_s = self._settings.first_retry_s
                if self._settings.verify and not rebuilt:
                    self._checking = asyncio.create_task(self._check(writer), name=f"index check {self.ns}")
                    self._checking.add_done_callback(self._ended)
                await self._serve(writer)
            except RebuildWantedError as error:
                self._rebuild_reason = str(error)
                continue
            except BackendAwayError as error:
                self._set(IndexState.STARTING, str(error))
                if error.hung:
                    await self._backend.restart(session, str(error))
            except BackendFaultError as error:
                self._rebuild_reason = str(error)
                self._set(IndexState.DEGRADED, str(error))
                _log.error("vector index fault", ns=self.ns, error=str(error), retry_after_s=delay_s)
            except (StorageFailed, OSError) as error:
                self._set(IndexState.DEGRADED, str(error))
                _log.error("vector index cannot go on", ns=self.ns, error=str(error), retry_after_s=delay_s)
            else:
                return
            if not session.lost.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(delay_s):
                        await session.lost.wait()
                delay_s = min(2 * delay_s, self._settings.max_retry_s)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Make a fault of ours visible: searches go on over the catalog, and the status says why."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._set(IndexState.DEGRADED, f"the index worker failed: {error!r}")
            _log.error("index worker failed", ns=self.ns, exc_info=error)

    async def _open(self, session: Session) -> tuple[CollectionWriter, bool]:
        """Bring the collection in step with the catalog; say whether it had to be rebuilt."""
        record = await self._backend.write(self._file.load)
        reason = self._rebuild_reason or await why_not_usable(
            self._backend, session, self.outbox, record, self.dim, self._settings
        )
        usable = record or IndexRecord(dim=self.dim, stamp="", applied_seq=-1, digest=0, clean=False)
        writer = CollectionWriter(
            self.ns, self._feed, self._backend, session, self._settings, self._file, usable, self.layout
        )
        if reason:
            await self._rebuild(writer, reason)
        else:
            self.layout.known = await self._backend.write(session.connection.partitions, self.ns)
            self.layout.shared = set(usable.shared)
            self.outbox.advance(usable.applied_seq)
            await self._feed.ack_index_ops(self.ns, through=usable.applied_seq)
            await catch_up(writer, self.outbox, self._settings)
        self.ready_session = session
        self._set(IndexState.READY, "")
        return writer, bool(reason)

    async def _rebuild(self, writer: CollectionWriter, reason: str) -> None:
        _log.info("rebuilding the vector index", ns=self.ns, reason=reason)

        def progress(done: int, total: int) -> None:
            self._done, self._total = done, total
            self._set(IndexState.REBUILDING, reason)

        read_through = await rebuild(writer, self.outbox, self.dim, self._settings, progress)
        _log.info("rebuilt the vector index", ns=self.ns, rows=self._done)
        self._rebuild_reason = ""
        try:
            await catch_up(writer, self.outbox, self._settings, read_through=read_through)
        except RebuildWantedError as error:
            # Once more at once would only repeat it: a fault, tried again after a delay.
            raise BackendFaultError(f"after a rebuild {error}") from error

    async def _check(self, writer: CollectionWriter) -> None:
        """Have the collection rebuilt when it does not hold what it should."""
        check = ContentCheck(writer, self.outbox, self._settings)
        try:
            reason = await check.run()
        except BackendAwayError as error:
            _log.info("checking the vector index ended early", ns=self.ns, error=str(error))
        except BackendFaultError as error:
            self.want_rebuild(str(error))
        except StorageFailed as error:
            _log.warning("the vector index could not be checked", ns=self.ns, error=str(error))
        else:
            _log.info("checked the vector index", ns=self.ns, rows=check.rows, wrong=reason)
            if reason:
                self.want_rebuild(reason)

    async def _serve(self, writer: CollectionWriter) -> None:
        """Write batches until stopped; ends with an exception when the session does."""
        loop = asyncio.get_running_loop()
        oldest_s: float | None = None
        try:
            while True:
                paused = await self._pause(loop, oldest_s)
                if writer.session.lost.is_set():
                    raise BackendAwayError(self._backend.reason or "the backend was restarted")
                if self._rebuild_reason:
                    raise RebuildWantedError(self._rebuild_reason)
                await self.outbox.refresh()
                self.outbox.release(loop.time())
                if oldest_s is None and self.outbox.backlog:
                    oldest_s = loop.time()
                aged = oldest_s is not None and loop.time() - oldest_s >= self._settings.max_age_s
                hurry, self._hurry = self._hurry or self._stopping, False
                if self.outbox.backlog >= self._settings.flush_rows or paused or aged or hurry:
                    while ops := self.outbox.overlay.after(self.outbox.applied, self._settings.batch_rows):
                        await self._apply(writer, ops)
                    oldest_s = None
                if self._stopping and not self.outbox.backlog:
                    return
                self._tell()
        finally:
            self.ready_session = None
            if self._checking is not None:
                self._checking.cancel()
                await asyncio.gather(self._checking, return_exceptions=True)

    async def _pause(self, loop: asyncio.AbstractEventLoop, oldest_s: float | None) -> bool:
        """Wait for news; return True when a pause (or the backend's end) came first."""
        timeout_s: float | None = None
        if self._stopping or (self.outbox.news and not self.outbox.full_of_written):
            timeout_s = 0.0
        elif oldest_s is not None:
            timeout_s = min(self._settings.idle_s, max(0.0, oldest_s + self._settings.max_age_s - loop.time()))
        elif self.outbox.next_release_s is not None:
            timeout_s = max(0.0, self.outbox.next_release_s - loop.time())
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return oldest_s is not None and not self.outbox.news
        self._wake.clear()
        return False

    async def _apply(self, writer: CollectionWriter, ops: Sequence[IndexOp]) -> None:
        await writer.apply(ops)
        self.outbox.advance(ops[-1].seq)
        self._tell()

    def _set(self, state: IndexState, reason: str) -> None:
        if state is not IndexState.READY:
            self.ready_session = None
        if state is not IndexState.REBUILDING:
            self._done = self._total = 0
        self._state, self._reason = state, reason
        self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
