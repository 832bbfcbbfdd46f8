"""An event loop in a thread of its own, and what runs on it from elsewhere."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Final, TypeVar

__all__ = ["Loop"]

T = TypeVar("T")

_END: Final = object()


class Loop:
    """An event loop that runs in a daemon thread until it is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="clag-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for it; an interrupt of the waiting thread cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """Iterate over an async iterator from here."""
        while True:
            item = self.run(_next(source))
            if item is _END:
                return
            yield item  # type: ignore[misc]  # not the end mark

    @contextmanager
    def entered(self, manager: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """Enter an async context manager from here."""
        value = self.run(_enter(manager))
        try:
            yield value
        finally:
            self.run(_leave(manager))


async def _next(source: AsyncIterator[T]) -> T | object:
    return await anext(source, _END)


async def _enter(manager: AbstractAsyncContextManager[T]) -> T:
    return await manager.__aenter__()


async def _leave(manager: AbstractAsyncContextManager[Any]) -> None:
    await manager.__aexit__(None, None, None)
