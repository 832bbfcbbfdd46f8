"""The index worker of one namespace: keeps its collection in step with the catalog, through every failure.

One task per namespace:

    wait for the backend -> open: load, catch up, compare with the catalog -> READY: write batches
                              | anything does not fit                           | the backend answers with an error
                              v                                                 v
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
from clag_server.vectors.errors import BackendAwayError, BackendFaultError, RebuildWantedError
from clag_server.vectors.milvus import Flavor
from clag_server.vectors.overlay import Overlay
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
        self.overlay = Overlay()
        self.layout = PartitionLayout(settings.partitions, settings.shared_partitions)
        self.ready_session: Session | None = None
        """The session that may be searched; None unless READY."""
        self.caught_up = True
        """Whether the overlay reaches the end of the outbox."""
        self._feed = feed
        self._backend = backend
        self._settings = settings
        self._file = RecordFile(folder, ns)
        self._state = IndexState.STARTING
        self._reason = "waiting for the backend"
        self._done = 0
        self._total = 0
        self._applied = -1
        self._news = True
        self._rebuild_reason = ""
        self._stopping = False
        self._hurry = False
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._refreshing = asyncio.Lock()
        self._retained: list[tuple[float, int]] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def status(self) -> IndexStatus:
        """The newest status."""
        return IndexStatus(self._state, self._reason, self._done, self._total, self.backlog)

    @property
    def backlog(self) -> int:
        """Ops known here that are not durable in the backend."""
        return self.overlay.count_after(self._applied)

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
        self._news = True
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

    async def refresh(self) -> None:
        """Bring the overlay up to the end of the outbox, as far as it may grow; cheap without news.

        Raises:
            StorageFailed: The catalog cannot be read.
        """
        if not self._news:
            return
        async with self._refreshing:
            while self._news:
                room = self._settings.overlay_ops - len(self.overlay)
                if room <= 0:
                    self.caught_up = False
                    return
                # Before the read: a commit that is announced during it must be read by the next round.
                self._news = False
                limit = min(room, self._settings.page_rows)
                try:
                    ops = await self._feed.read_index_ops(self.ns, after=self.overlay.last_seq, limit=limit)
                except BaseException:
                    self._news = True
                    raise
                self.overlay.extend(ops)
                self._news = self._news or len(ops) == limit
            self.caught_up = True

    async def settle(self) -> None:
        """Wait until the worker is READY and all that was announced so far is durable, without its usual pause."""
        while self._state is not IndexState.READY or self.backlog or self._news:
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
                writer = await self._open(session)
                delay_s = self._settings.first_retry_s
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
                    await asyncio.wait_for(session.lost.wait(), delay_s)
                delay_s = min(2 * delay_s, self._settings.max_retry_s)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Make a fault of ours visible: searches go on over the catalog, and the status says why."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._set(IndexState.DEGRADED, f"the index worker failed: {error!r}")
            _log.error("index worker failed", ns=self.ns, exc_info=error)

    async def _open(self, session: Session) -> CollectionWriter:
        """Bring the collection in step with the catalog, rebuilding it where it cannot be trusted."""
        record = await self._backend.write(self._file.load)
        reason = self._rebuild_reason or await self._distrust(session, record)
        usable = record or IndexRecord(dim=self.dim, stamp="", applied_seq=-1, clean=False)
        writer = CollectionWriter(
            self.ns,
            self._feed,
            self._backend,
            session,
            self._settings,
            self._file,
            usable,
            self.layout,
        )
        if reason:
            await self._rebuild(writer, reason)
            self._rebuild_reason = ""
            await self._check_rebuilt(writer)
        else:
            self.layout.known = await self._backend.write(session.connection.partitions, self.ns)
            self.layout.shared = set(usable.shared)
            self._advance(usable.applied_seq)
            await self._feed.ack_index_ops(self.ns, through=usable.applied_seq)
            await self._catch_up(writer)
        self.ready_session = session
        self._set(IndexState.READY, "")
        return writer

    async def _distrust(self, session: Session, record: IndexRecord | None) -> str:
        """Return why the collection needs a rebuild, empty when it can be used; it is loaded then."""
        if record is None:
            return "there is no record of the collection"
        if not record.clean or record.dropped:
            return "the last rebuild or write did not finish"
        if record.dim != self.dim:
            return f"the vectors have {self.dim} dimensions, the collection {record.dim}"
        head_seq, _ = await self._feed.index_head(self.ns)
        if record.applied_seq > head_seq:
            return "the catalog is older than the collection"
        try:
            info = await self._backend.write(session.connection.describe, self.ns)
            if info is None:
                return "the collection is missing"
            if (info.dim, info.stamp) != (record.dim, record.stamp):
                return "the collection is not the one that was written"
            await self._backend.write(session.connection.load, self.ns)
        except BackendFaultError as error:
            return f"the collection cannot be loaded: {error}"
        return ""

    async def _rebuild(self, writer: CollectionWriter, reason: str) -> None:
        head_seq, total = await self._feed.index_head(self.ns)
        _log.info("rebuilding the vector index", ns=self.ns, rows=total, reason=reason)
        self._done, self._total = 0, total
        self._set(IndexState.REBUILDING, reason)
        try:
            await writer.start_over(self.dim, head_seq)
        except BackendFaultError as error:
            # Neither dropped nor created: the files are in the way. The next session starts without them.
            await self._backend.purge(writer.session, self.ns)
            raise BackendAwayError(str(error)) from error
        after = -1
        unflushed = 0
        while ops := await self._feed.current_placements(self.ns, after=after, limit=self._settings.page_rows):
            await writer.put(ops)
            after = ops[-1].placement_id
            self._done = min(self._done + len(ops), self._total)
            unflushed += len(ops)
            if unflushed >= self._settings.rebuild_flush_rows:
                await writer.flush()
                unflushed = 0
        await writer.finish_over()
        self._advance(head_seq)
        _log.info("rebuilt the vector index", ns=self.ns, rows=self._done)

    async def _check_rebuilt(self, writer: CollectionWriter) -> None:
        try:
            await self._catch_up(writer)
        except RebuildWantedError as error:
            # Once more at once would only repeat it: a fault, tried again after a delay.
            raise BackendFaultError(f"after a rebuild {error}") from error

    async def _catch_up(self, writer: CollectionWriter) -> None:
        """Apply all there is, then compare the number of rows with the catalog's; raises RebuildWantedError."""
        self.caught_up = False
        while not self.caught_up:
            while ops := self.overlay.after(self._applied, self._settings.flush_rows):
                await self._apply(writer, ops)
            # Read in this order, the overlay holds every op that the count includes (and maybe later ones).
            head_seq, placements = await self._feed.index_head(self.ns)
            self._news = True
            await self.refresh()
        for op in self.overlay.after(self._applied, len(self.overlay)):
            if op.seq <= head_seq:
                placements -= 1 if op.put else -1
        rows = await self._backend.write(writer.session.connection.count, self.ns)
        if rows != placements:
            raise RebuildWantedError(f"the collection has {rows} rows where the catalog has {placements}")

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
                await self.refresh()
                self._release(loop.time())
                if oldest_s is None and self.backlog:
                    oldest_s = loop.time()
                aged = oldest_s is not None and loop.time() - oldest_s >= self._settings.max_age_s
                hurry, self._hurry = self._hurry or self._stopping, False
                if self.backlog >= self._settings.flush_rows or paused or aged or hurry:
                    while ops := self.overlay.after(self._applied, self._settings.flush_rows):
                        await self._apply(writer, ops)
                    oldest_s = None
                if self._stopping and not self.backlog:
                    return
                self._tell()
        finally:
            self.ready_session = None

    async def _pause(self, loop: asyncio.AbstractEventLoop, oldest_s: float | None) -> bool:
        """Wait for news; return True when a pause (or the backend's end) came first."""
        timeout_s: float | None = None
        if self._news or self._stopping:
            timeout_s = 0.0
        elif oldest_s is not None:
            timeout_s = min(self._settings.idle_s, max(0.0, oldest_s + self._settings.max_age_s - loop.time()))
        elif self._retained:
            timeout_s = self._settings.visible_after_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return oldest_s is not None
        self._wake.clear()
        return False

    async def _apply(self, writer: CollectionWriter, ops: Sequence[IndexOp]) -> None:
        try:
            await writer.apply(ops)
        except BackendFaultError:
            await writer.doubt()
            raise
        self._advance(ops[-1].seq)
        self._tell()

    def _advance(self, seq: int) -> None:
        """Ops up to `seq` are durable: they leave the overlay, on a server once its reads show them."""
        self._applied = seq
        if self._backend.flavor is Flavor.LITE:
            self.overlay.drop_through(seq)
        else:
            self._retained.append((asyncio.get_running_loop().time() + self._settings.visible_after_s, seq))

    def _release(self, now_s: float) -> None:
        while self._retained and self._retained[0][0] <= now_s:
            self.overlay.drop_through(self._retained.pop(0)[1])

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
