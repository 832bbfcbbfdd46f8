"""A blocking iterator, read in a thread of its own for a consumer on an event loop.

A hop between threads for each item costs more than all the rest of sending it: items that are there already are
handed over together, and one that the iterator has to wait for is handed over before the next is asked for.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Final, Generic, TypeVar

__all__ = ["in_thread"]

T = TypeVar("T")

_READ_AHEAD: Final = 128
"""Items that may wait to be taken: two frames."""


async def in_thread(items: Iterator[T]) -> AsyncIterator[T]:
    """Yield the items of an iterator that is read in another thread, so that it may wait.

    What it raises is raised here, after the items before it. The thread ends with the iterator, or, when the
    consumer leaves early, with the item that it then waits for.
    """
    reader = _Reader(items, asyncio.get_running_loop())
    threading.Thread(target=reader.read, name="clag-source", daemon=True).start()
    try:
        while True:
            await reader.there.wait()
            reader.there.clear()
            while reader.items:
                item = reader.items.popleft()
                reader.room.release()
                yield item
            if reader.ended and not reader.items:
                if reader.failure is not None:
                    raise reader.failure
                return
    finally:
        reader.left = True
        reader.room.release()


class _Reader(Generic[T]):
    def __init__(self, source: Iterator[T], loop: asyncio.AbstractEventLoop) -> None:
        self._source = source
        self._loop = loop
        self.items: deque[T] = deque()
        self.room = threading.Semaphore(_READ_AHEAD)
        self.there = asyncio.Event()
        self.ended = False
        self.left = False
        self.failure: BaseException | None = None

    def read(self) -> None:
        try:
            for item in self._source:
                self.room.acquire()
                if self.left:
                    return
                self.items.append(item)
                self._tell()
        except BaseException as error:  # noqa: BLE001  # handed on: it is raised where the items are taken
            self.failure = error
        self.ended = True
        self._tell()

    def _tell(self) -> None:
        if not self.there.is_set() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.there.set)
