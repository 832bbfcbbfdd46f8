"""Reads: a few threads, each read in its own snapshot, so that none ever waits for a writer."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import sqlalchemy as sa

from clag_server.catalog.connections import connect_reader, driver_of, storage_errors
from clag_server.types.errors import StorageFailed

T = TypeVar("T")
Read = Callable[[sa.Connection], T]


class ReaderPool:
    """Owns `size` connections and as many threads."""

    def __init__(self, engine: sa.Engine, size: int) -> None:
        self._connections: queue.SimpleQueue[sa.Connection] = queue.SimpleQueue()
        self._all = [connect_reader(engine) for _ in range(size)]
        for connection in self._all:
            self._connections.put(connection)
        self._closed = False
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="catalog-reader")

    async def run(self, read: Read[T]) -> T:
        """Run `read` in a snapshot that holds every write that has returned.

        Raises:
            StorageFailed: the file cannot be read.
            Exception: whatever `read` raised.
        """
        if self._closed:
            raise StorageFailed("the catalog is closed")
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._read, read)

    def close(self) -> None:
        """Finish running reads and close the connections; blocks."""
        self._closed = True
        self._threads.shutdown(wait=True, cancel_futures=True)
        for connection in self._all:
            connection.close()

    def _read(self, read: Read[T]) -> T:
        connection = self._connections.get()
        try:
            with storage_errors():
                driver = driver_of(connection)
                driver.execute("BEGIN")
                try:
                    return read(connection)
                finally:
                    if driver.in_transaction:
                        driver.execute("ROLLBACK")
        finally:
            self._connections.put(connection)
