"""What is known of one namespace's outbox: pending ops in memory, and how far the collection has them."""

from __future__ import annotations

import asyncio

from clag_server.catalog.api import IndexFeed
from clag_server.vectors.overlay import Overlay
from clag_server.vectors.settings import IndexSettings

__all__ = ["Outbox"]


class Outbox:
    """Reads the outbox into an overlay and forgets what is written.

    Args:
        ns: The namespace.
        feed: The catalog.
        settings: Sizes.
        visible_after_s: How long a written op stays in the overlay (a server's reads trail its writes), seconds.
    """

    def __init__(self, ns: int, feed: IndexFeed, settings: IndexSettings, *, visible_after_s: float) -> None:
        self.ns = ns
        self.feed = feed
        self.overlay = Overlay()
        self.caught_up = True
        """Whether the overlay reached the end of the outbox at the last read."""
        self.applied = -1
        """Newest op that is durable in the collection."""
        self.news = True
        """Whether there may be ops that were not read."""
        self._settings = settings
        self._visible_after_s = visible_after_s
        self._reading = asyncio.Lock()
        self._written: list[tuple[float, int]] = []

    @property
    def backlog(self) -> int:
        """Ops in the overlay that are not durable in the collection."""
        return self.overlay.count_after(self.applied)

    @property
    def next_release_s(self) -> float | None:
        """When the oldest written op may leave the overlay (loop time, seconds); None without one."""
        return self._written[0][0] if self._written else None

    @property
    def full_of_written(self) -> bool:
        """Whether reading on has to wait until written ops may leave the overlay."""
        full = len(self.overlay) >= self._settings.overlay_ops
        return full and not self.backlog and bool(self._written)

    async def refresh(self) -> None:
        """Bring the overlay up to the end of the outbox, as far as it may grow; cheap without news.

        Whoever comes while another reads waits for that: else it would miss what is being read, and the worker
        would fall asleep over it.

        Raises:
            StorageFailed: The catalog cannot be read.
        """
        if not self.news and not self._reading.locked():
            return
        async with self._reading:
            while self.news:
                room = self._settings.overlay_ops - len(self.overlay)
                if room <= 0:
                    self.caught_up = False
                    return
                # Before the read: a commit that is announced during it must be read by the next round.
                self.news = False
                limit = min(room, self._settings.page_rows)
                try:
                    ops = await self.feed.read_index_ops(self.ns, after=self.overlay.last_seq, limit=limit)
                except BaseException:
                    self.news = True
                    raise
                self.overlay.extend(ops)
                self.news = self.news or len(ops) == limit
            self.caught_up = True

    async def make_room(self) -> None:
        """Wait until there is room for reading on, where only written ops that must stay a while fill it."""
        while self.full_of_written:
            now_s = asyncio.get_running_loop().time()
            await asyncio.sleep(max(0.0, self._written[0][0] - now_s))
            self.release(asyncio.get_running_loop().time())

    def advance(self, seq: int) -> None:
        """Note that ops up to `seq` are durable; they leave the overlay once searches of the backend show them."""
        self.applied = seq
        now_s = asyncio.get_running_loop().time()
        self._written.append((now_s + self._visible_after_s, seq))
        self.release(now_s)

    def release(self, now_s: float) -> None:
        """Forget what was written long enough ago; `now_s` is loop time."""
        while self._written and self._written[0][0] <= now_s:
            self.overlay.drop_through(self._written.pop(0)[1])
