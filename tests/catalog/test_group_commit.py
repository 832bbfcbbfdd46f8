"""Writers share transactions: one that fails harms no other, and a full disk harms none that was acknowledged."""

from __future__ import annotations

import asyncio
import resource
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clag_server.catalog.sqlite import SqliteCatalog
from clag_server.catalog.transaction import WriteTx
from clag_server.catalog.writer import GroupWriter
from clag_server.types.errors import NotFound, SequenceGap, StorageFailed
from clag_server.types.memory import NewMemory
from tests.catalog import support

NOW = support.NOW


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteCatalog]:
    """Return an open SQLite catalog."""
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    await catalog.open()
    yield catalog
    await catalog.close()


@pytest.fixture
async def ns(store: SqliteCatalog) -> int:
    return (await support.namespace(store)).ns


def writer_of(store: SqliteCatalog) -> GroupWriter:
    assert store._writer is not None
    return store._writer


class Gate:
    """A write that holds the writer until it is opened, so that what is queued behind it shares its transaction."""

    def __init__(self, store: SqliteCatalog) -> None:
        self._entered, self._go = threading.Event(), threading.Event()
        self.write = asyncio.ensure_future(writer_of(store).run(self._hold))

    def _hold(self, _: WriteTx) -> None:
        self._entered.set()
        assert self._go.wait(30)

    async def closed(self) -> None:
        assert await asyncio.to_thread(self._entered.wait, 30)

    async def open(self) -> None:
        self._go.set()
        await self.write


def note(name: str) -> NewMemory:
    return NewMemory(text=f"text of {name}", memory_id=name, session_id="s")


async def texts(store: SqliteCatalog, ns: int) -> list[str]:
    page = await store.list_memories(ns, where=None, after=0, limit=10_000)
    return [memory.memory_id for memory in page.memories]


async def test_eight_writers_in_one_session_store_all_in_their_own_order(store: SqliteCatalog, ns: int) -> None:
    async def write(writer: int) -> None:
        ref = (await store.open_stream(ns, f"w{writer}")).ref
        for i in range(0, 100, 10):
            items = [note(f"{writer}-{i + j:02}") for j in range(10)]
            await store.append(ns, items, first_seq=i + 1, stream=ref, now_ns=NOW)

    await asyncio.gather(*(write(writer) for writer in range(8)))
    page = await store.list_memories(ns, where=None, after=0, limit=1_000)
    assert len(page.memories) == 800
    assert [memory.session_position for memory in page.memories] == list(range(800))
    for writer in range(8):
        own = [memory.memory_id for memory in page.memories if memory.memory_id.startswith(f"{writer}-")]
        assert own == sorted(own)
        assert len(own) == 100


async def test_a_write_that_fails_takes_back_only_itself(store: SqliteCatalog, ns: int) -> None:
    ref = (await store.open_stream(ns, "s")).ref
    gate = Gate(store)
    await gate.closed()
    writes = [
        asyncio.ensure_future(store.append(ns, [note("a")], first_seq=1, stream=None, now_ns=NOW)),
        asyncio.ensure_future(store.append(ns, [note("gap")], first_seq=7, stream=ref, now_ns=NOW)),
        asyncio.ensure_future(store.append(ns + 9, [note("nowhere")], first_seq=1, stream=None, now_ns=NOW)),
        asyncio.ensure_future(writer_of(store).run(half_a_write)),
        asyncio.ensure_future(store.append(ns, [note("b")], first_seq=1, stream=ref, now_ns=NOW)),
    ]
    await asyncio.sleep(0)  # each has queued its write
    await gate.open()
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(result) for result in results if isinstance(result, BaseException)] == [
        SequenceGap,
        NotFound,
        ZeroDivisionError,
    ]
    assert await texts(store, ns) == ["a", "b"]
    assert (await store.stats(ns)).created == 2


def half_a_write(tx: WriteTx) -> float:
    tx.connection.exec_driver_sql("UPDATE namespaces SET created = 99")
    return 1 / 0


async def test_a_caller_that_stops_waiting_does_not_take_its_write_back(store: SqliteCatalog, ns: int) -> None:
    gate = Gate(store)
    await gate.closed()
    write = asyncio.ensure_future(store.append(ns, [note("kept")], first_seq=1, stream=None, now_ns=NOW))
    await asyncio.sleep(0)  # it has queued its write
    write.cancel()
    with pytest.raises(asyncio.CancelledError):
        await write
    await gate.open()
    await store.revision()
    await store.append(ns, [note("after")], first_seq=1, stream=None, now_ns=NOW)
    assert await texts(store, ns) == ["kept", "after"]


async def test_closing_finishes_what_is_queued(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    store = SqliteCatalog(path)
    await store.open()
    ns = (await support.namespace(store)).ns
    writes = [
        asyncio.ensure_future(store.append(ns, [note(f"{i:03}")], first_seq=1, stream=None, now_ns=NOW))
        for i in range(200)
    ]
    await asyncio.sleep(0)  # each has queued its write
    await store.close()
    await asyncio.gather(*writes)
    await store.open()
    assert await texts(store, ns) == [f"{i:03}" for i in range(200)]
    await store.close()


async def test_reads_go_on_while_a_write_runs(store: SqliteCatalog, ns: int) -> None:
    gate = Gate(store)
    await gate.closed()
    assert await texts(store, ns) == []
    await gate.open()


def big(name: str) -> NewMemory:
    return NewMemory(text="x" * 20_000, memory_id=name)


async def fill(store: SqliteCatalog, ns: int) -> list[str]:
    """Store until the disk is full; return the ids that were acknowledged."""
    acked: list[str] = []
    for i in range(1_000):
        ids = [f"{i:04}-{j}" for j in range(8)]
        try:
            await store.append(ns, [big(name) for name in ids], first_seq=1, stream=None, now_ns=NOW)
        except StorageFailed:
            return acked
        acked += ids
    raise AssertionError("the disk never filled")


async def test_a_full_database_loses_nothing_and_takes_writes_again_when_there_is_room(
    store: SqliteCatalog, ns: int
) -> None:
    await limit_pages(store, 200)
    acked = await fill(store, ns)
    assert acked
    assert await texts(store, ns) == acked
    before = await store.stats(ns)
    gate = Gate(store)
    await gate.closed()
    too_much = asyncio.ensure_future(
        store.append(ns, [big(f"no-{i}") for i in range(99)], first_seq=1, stream=None, now_ns=NOW)
    )
    fits = asyncio.ensure_future(store.touch(ns, [], now_ns=NOW))
    await asyncio.sleep(0)  # both are queued
    await gate.open()
    with pytest.raises(StorageFailed):
        await too_much
    await fits
    assert await store.stats(ns) == before
    await limit_pages(store, 10_000)
    await store.append(ns, [big("room again")], first_seq=1, stream=None, now_ns=NOW)
    assert await texts(store, ns) == [*acked, "room again"]


async def limit_pages(store: SqliteCatalog, pages: int) -> None:
    await writer_of(store).run(
        lambda tx: tx.connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}").scalar()
    )


async def test_a_disk_that_takes_no_more_bytes_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    store = SqliteCatalog(path)
    await store.open()
    ns = (await support.namespace(store)).ns
    with largest_file(2_000_000):
        acked = await fill(store, ns)
        assert await texts(store, ns) == acked
        assert store.write_failure
        with pytest.raises(StorageFailed):
            await probe_until_full(store)
        assert store.write_failure
    await store.probe_write()
    assert store.write_failure == ""
    await store.append(ns, [big("room again")], first_seq=1, stream=None, now_ns=NOW)
    await store.close()
    await store.open()
    assert await texts(store, ns) == [*acked, "room again"]
    await store.close()


async def probe_until_full(store: SqliteCatalog) -> None:
    """Probe again and again: the smallest write still finds room where a batch did not."""
    for _ in range(999):
        await store.probe_write()


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let this process write no file beyond `size` bytes, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
