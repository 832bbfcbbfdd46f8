"""Group commit: one thread writes, and what waits when it comes around shares one transaction and one fsync.

A group is one `BEGIN IMMEDIATE` ... `COMMIT`; each write in it runs in its own savepoint, so that a write that
fails takes back only itself. Callers learn of their write after the commit, never before. Nothing here is
cancellable: a caller that stops waiting does not take its write back (rows and watermark belong together).
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import sqlalchemy as sa
import structlog

from clag_server.catalog.connections import as_storage_failure, driver_of
from clag_server.catalog.ownership import Owner
from clag_server.catalog.transaction import WriteTx
from clag_server.types.errors import OwnershipLost, StorageFailed

T = TypeVar("T")
Write = Callable[[WriteTx], T]

MAX_GROUP_WRITES: Final = 64
"""Writes in one transaction at most: bounds what one failed commit takes with it."""

MAX_GROUP_SECONDS: Final = 0.020
"""A group takes no further write after this: bounds how long the first one waits for its commit."""

_log = structlog.get_logger(__name__)


class _RolledBackError(Exception):
    """SQLite rolled the transaction back by itself."""


@dataclass(slots=True)
class _Job:
    """A queued write and the future of its caller."""

    write: Write[Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    result: Any = None
    error: Exception | None = None
    again: bool = False

    def resolve(self) -> None:
        """Answer the caller, in its loop, unless it stopped waiting."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class GroupWriter:
    """Owns the writing connection and the thread that uses it."""

    def __init__(self, connection: sa.Connection, owner: Owner) -> None:
        self._connection = connection
        self._owner = owner
        self._driver = driver_of(connection)
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self.failure = ""
        """Why the newest write that met the disk failed there, or why none is allowed; "" when it did not fail."""
        self.listeners: list[Callable[[], None]] = []
        """Called in the writer's thread after each group, once its callers are answered; must return at once."""
        self._thread = threading.Thread(target=self._run, name="catalog-writer", daemon=True)
        self._thread.start()

    async def run(self, write: Write[T]) -> T:
        """Run `write` in a transaction and return its result once that is on disk.

        Raises:
            StorageFailed: the disk or the file failed; nothing of the write is stored.
            OwnershipLost: another server took the catalog over; nothing is stored, now or later.
            Exception: whatever `write` raised; nothing of it is stored.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._lock:
            if self._closed:
                raise StorageFailed("the catalog is closed")
            self._queue.put(_Job(write, loop, future))
        return await future

    def close(self) -> None:
        """Finish what is queued and end the thread; blocks. Later writes are refused."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        last = False
        while not last and (job := self._queue.get()) is not None:
            group = [job]
            last = self._attempt(group, take_more=True)
            while again := [job for job in group if job.again]:
                self._attempt(again, take_more=False)
            _resolve(group)
            for listener in tuple(self.listeners):
                listener()

    def _attempt(self, group: list[_Job], *, take_more: bool) -> bool:
        """Run a group in one transaction; with `take_more`, what waits meanwhile joins it.

        A write that makes SQLite roll back the transaction by itself (a full disk does) fails alone: the others are
        marked to run again without it, so at most `MAX_GROUP_WRITES` times.

        Returns:
            True when the end of the queue came.
        """
        last = False
        try:
            self._owner.refuse_if_lost()
            self._driver.execute("BEGIN IMMEDIATE")
            transaction = WriteTx(self._connection)
            epoch = self._owner.admit(transaction)
            for job in group:
                self._run_one(transaction, job)
            if take_more:
                last = self._take_more(transaction, group)
            transaction.save_numbers()
            self._driver.execute("COMMIT")
            self._owner.hold(epoch)
            self.failure = _storage_failure(group)
        except _RolledBackError:
            self.failure = _storage_failure(group)
            for job in group:
                job.again = job.error is None
        except Exception as error:  # noqa: BLE001 (each caller of the group gets it)
            self._roll_back()
            failure = as_storage_failure(error)
            if not isinstance(error, OwnershipLost):  # that is said once
                _log.error("catalog commit failed", writes=len(group), error=str(failure))
            for job in group:
                job.error = job.error or failure
            self.failure = _storage_failure(group)
        return last

    def _take_more(self, transaction: WriteTx, group: list[_Job]) -> bool:
        until = time.monotonic() + MAX_GROUP_SECONDS
        while len(group) < MAX_GROUP_WRITES and time.monotonic() < until:
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                break
            if job is None:
                return True
            group.append(job)
            self._run_one(transaction, job)
        return False

    def _run_one(self, transaction: WriteTx, job: _Job) -> None:
        """Run one write in a savepoint; its error is its caller's alone.

        Raises:
            _RolledBackError: SQLite took back the whole transaction.
        """
        job.again = False
        mark = transaction.mark()
        self._driver.execute("SAVEPOINT one")
        try:
            job.result = job.write(transaction)
        except Exception as error:
            job.error = as_storage_failure(error)
            if not self._driver.in_transaction:
                _log.error("catalog write failed", error=str(job.error))
                raise _RolledBackError from error
            self._driver.execute("ROLLBACK TO one")
            transaction.give_back(mark)
        self._driver.execute("RELEASE one")

    def _roll_back(self) -> None:
        try:
            if self._driver.in_transaction:
                self._driver.execute("ROLLBACK")
        except sqlite3.Error as error:
            _log.error("catalog rollback failed", error=str(error))


def _storage_failure(group: Sequence[_Job]) -> str:
    """Return what the disk or a new owner refused a write of the group with; other errors are the callers' own."""
    refusals = (StorageFailed, OwnershipLost)
    return next((str(job.error) for job in group if isinstance(job.error, refusals)), "")


def _resolve(group: Sequence[_Job]) -> None:
    """Answer the callers of a group, with one wake-up a loop."""
    for loop in {job.loop for job in group}:
        jobs = [job for job in group if job.loop is loop]
        try:
            loop.call_soon_threadsafe(_resolve_here, jobs)
        except RuntimeError:  # the loop is closed: nobody waits there any more, the writes are stored all the same
            _log.debug("writes finished after their event loop closed", writes=len(jobs))


def _resolve_here(jobs: Sequence[_Job]) -> None:
    for job in jobs:
        job.resolve()
