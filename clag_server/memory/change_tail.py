"""One reader of the change log for all who are at its end.

Watchers that keep up share what the tail has read: each page of the log is read once, however many they are. One
that is late (it resumes an old revision, or its client reads slowly) reads pages of its own, at its own pace, until
it has caught up. So a reader that does not read holds one page and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from clag_server.types.change import Change, ChangeBatch
from clag_server.types.errors import LogCompacted, StorageFailed

PAGE_ROWS: Final = 512
"""Rows that the shared reader takes at once."""

OWN_PAGE_ROWS: Final = 128
"""Rows that a late reader takes at once: what each of them may hold."""

KEPT_PAGES: Final = 8
"""Pages of the shared reader that are kept for those a little behind it."""

RETRY_S: Final = 1.0
"""Pause after a read that the disk refused."""


class Log(Protocol):
    """The part of a catalog that a tail reads."""

    async def changes(self, *, after: int, limit: int) -> ChangeBatch:
        """See `catalog.api_log.ChangeLog.changes`."""

    def on_commit(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have `listener` called after every commit, in any thread; returns what ends that."""


@dataclass(frozen=True, slots=True)
class _Page:
    """What the log held after `after`, up to and with `through`."""

    after: int
    changes: tuple[Change, ...]
    through: int

    def following(self, position: int) -> ChangeBatch:
        return ChangeBatch([change for change in self.changes if change.revision > position], self.through)


class ChangeTail:
    """Follows the log while somebody waits at its end. `start` once, `stop` at the end.

    Args:
        log: The change log of all namespaces.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._pages: deque[_Page] = deque(maxlen=KEPT_PAGES)
        self._head = 0
        self._waiting = 0
        self._wanted = asyncio.Event()
        self._committed = asyncio.Event()
        self._moved = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._unlisten: Callable[[], None] = lambda: None
        self.shared_reads = 0
        """Pages that the shared reader has read."""

    async def start(self) -> None:
        """Listen to commits and be ready to follow; the catalog is open."""
        loop = asyncio.get_running_loop()

        def committed() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody watches any more
                loop.call_soon_threadsafe(self._committed.set)

        self._unlisten = self._log.on_commit(committed)
        self._task = asyncio.create_task(self._follow(), name="change-tail")

    async def stop(self) -> None:
        """Stop following; waiting readers are the caller's to cancel."""
        self._unlisten()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def after(self, position: int) -> ChangeBatch:
        """Wait until the log has gone beyond `position` and return what follows, perhaps not all of it.

        Raises:
            LogCompacted: what follows `position` is gone.
            StorageFailed: the log cannot be read.
        """
        while True:
            for page in self._pages:
                if page.after <= position < page.through:
                    return page.following(position)
            if position < self._head:
                return await self._log.changes(after=position, limit=OWN_PAGE_ROWS)
            if position > self._head:
                self._go_on_at(position)
            await self._until_moved()

    async def _until_moved(self) -> None:
        moved = self._moved
        self._waiting += 1
        self._wanted.set()
        try:
            await moved.wait()
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._wanted.clear()

    async def _follow(self) -> None:
        while True:
            await self._wanted.wait()
            self._committed.clear()
            if await self._read():
                continue
            await self._committed.wait()

    async def _read(self) -> bool:
        """Read a page at the head and tell the waiting; False when there was nothing new."""
        head = self._head
        try:
            batch = await self._log.changes(after=head, limit=PAGE_ROWS)
        except LogCompacted as compacted:
            self._go_on_at(compacted.oldest)  # those who wait page by themselves, and are told
            return True
        except StorageFailed:
            await asyncio.sleep(RETRY_S)
            return True
        if self._head != head:
            return True  # a reader further on has moved the head meanwhile
        if batch.through <= head:
            return False
        self.shared_reads += 1
        self._pages.append(_Page(head, tuple(batch.changes), batch.through))
        self._head = batch.through
        self._tell()
        return True

    def _go_on_at(self, position: int) -> None:
        """Leave a gap: those who wait before it page by themselves."""
        self._pages.clear()
        self._head = position
        self._tell()

    def _tell(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
