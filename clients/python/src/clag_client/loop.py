"""An event loop in a thread of its own, and what runs on it from elsewhere."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Final, Generic, Self, TypeVar

import grpc

from clag_client.errors import ClagError

__all__ = ["Iteration", "Loop"]

R = TypeVar("R")
T = TypeVar("T")

_END: Final = object()


class Loop:
    """An event loop that runs in a daemon thread until it is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._closing = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="clag-client", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether it runs nothing any more, or soon."""
        return self._closing

    def start(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine there; cancelling the future cancels it.

        Raises:
            ClagError: if the client is closed: nothing would run it any more.
        """
        with self._lock:
            if not self._closing:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise ClagError(grpc.StatusCode.CANCELLED, "the client is closed")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for it; an interrupt of the waiting thread cancels it."""
        future = self.start(work)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise _cancelled() from None
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancel what still runs, for whoever waits for it in another thread, and end the thread."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            others = asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop)
        others.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def iterate(self, source: AsyncIterator[T]) -> Iteration[T]:
        """Iterate over an async iterator from here."""
        return Iteration(self, source)

    @contextmanager
    def entered(self, manager: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """Enter an async context manager from here."""
        value = self.run(_enter(manager))
        try:
            yield value
        finally:
            if not self._closing:  # closing cancels all that runs, and leaves nothing that could be left
                self.run(_leave(manager))


class Iteration(Generic[T]):
    """An iterator whose items come from the loop.

    Args:
        loop: where the source belongs.
        source: gives the items.
    """

    def __init__(self, loop: Loop, source: AsyncIterator[T]) -> None:
        self._loop = loop
        self._source = source
        self._lock = threading.Lock()
        self._running: concurrent.futures.Future[Any] | None = None
        self._cancelled = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        """Return the next item.

        Raises:
            ClagError: if the call failed, or another thread cancelled it.
        """
        item = self.run(_next(self._source))
        if item is _END:
            raise StopIteration
        return item  # type: ignore[return-value]  # not the end mark

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run something else that `cancel` ends too, and wait for it."""
        with self._lock:
            if self._cancelled:
                work.close()
                raise _cancelled()
            future = self._loop.start(work)
            self._running = future
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise _cancelled() from None
        except BaseException:
            future.cancel()
            raise

    def cancel(self) -> None:
        """End it from another thread: who waits for the next item gets a `ClagError` with the code CANCELLED."""
        with self._lock:
            self._cancelled = True
            if self._running is not None:
                self._running.cancel()


def _cancelled() -> ClagError:
    return ClagError(grpc.StatusCode.CANCELLED, "the call was cancelled by this program")


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _next(source: AsyncIterator[T]) -> T | object:
    return await anext(source, _END)


async def _enter(manager: AbstractAsyncContextManager[T]) -> T:
    return await manager.__aenter__()


async def _leave(manager: AbstractAsyncContextManager[Any]) -> None:
    await manager.__aexit__(None, None, None)
