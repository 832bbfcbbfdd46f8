"""Of two servers on one file only the one that came last writes; the other says why it does not."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from clag_server.catalog.sqlite import SqliteCatalog
from clag_server.types.errors import OwnershipLost, StorageFailed
from clag_server.types.memory import NewMemory
from tests.catalog import support
from tests.catalog.test_group_commit import Gate, largest_file


async def opened(path: Path) -> SqliteCatalog:
    catalog = SqliteCatalog(path)
    await catalog.open()
    return catalog


async def put(catalog: SqliteCatalog, ns: int, memory_id: str) -> None:
    await support.store(catalog, ns, [NewMemory(text="note", memory_id=memory_id)])


async def stored(catalog: SqliteCatalog, ns: int) -> list[str]:
    page = await catalog.list_memories(ns, where=None, after=0, limit=100)
    return [memory.memory_id for memory in page.memories]


def epoch_of(catalog: SqliteCatalog) -> int | None:
    return catalog.owner_epoch


@pytest.fixture
async def overtaken(tmp_path: Path) -> AsyncIterator[tuple[SqliteCatalog, SqliteCatalog, int]]:
    """Return a catalog that was opened by a second server, the second server's, and their namespace."""
    first = await opened(tmp_path / "catalog.db")
    ns = (await support.namespace(first)).ns
    await put(first, ns, "before")
    second = await opened(tmp_path / "catalog.db")
    yield first, second, ns
    await first.close()
    await second.close()


async def test_a_server_that_was_overtaken_stores_nothing_more_and_says_why(
    overtaken: tuple[SqliteCatalog, SqliteCatalog, int],
) -> None:
    first, second, ns = overtaken
    assert first.write_failure == ""
    for _ in range(2):
        with pytest.raises(OwnershipLost, match="now belongs to"):
            await put(first, ns, "lost")
        assert "now belongs to" in first.write_failure
    await put(second, ns, "after")
    assert second.write_failure == ""
    assert await stored(second, ns) == ["before", "after"]
    assert await stored(first, ns) == ["before", "after"]  # it may still read


async def test_all_writes_that_wait_together_are_refused(
    overtaken: tuple[SqliteCatalog, SqliteCatalog, int],
) -> None:
    first, second, ns = overtaken
    writes = [asyncio.ensure_future(put(first, ns, f"lost-{i}")) for i in range(20)]
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert {type(result) for result in results} == {OwnershipLost}
    assert await stored(second, ns) == ["before"]


async def test_what_was_written_before_the_second_server_came_is_kept(tmp_path: Path) -> None:
    first = await opened(tmp_path / "catalog.db")
    ns = (await support.namespace(first)).ns
    gate = Gate(first)
    await gate.closed()
    written = asyncio.ensure_future(put(first, ns, "in time"))
    opening = asyncio.ensure_future(opened(tmp_path / "catalog.db"))  # waits for the transaction to end
    await asyncio.sleep(0)  # the write is queued: it shares the gate's transaction
    await gate.open()
    await written
    second = await opening
    assert await stored(second, ns) == ["in time"]
    with pytest.raises(OwnershipLost):
        await put(first, ns, "late")
    await first.close()
    await second.close()


async def test_ownership_that_was_lost_does_not_come_back_with_an_older_file(
    overtaken: tuple[SqliteCatalog, SqliteCatalog, int], tmp_path: Path
) -> None:
    first, _, ns = overtaken
    with pytest.raises(OwnershipLost):
        await put(first, ns, "lost")
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as connection, connection:
        connection.execute("UPDATE counters SET owner_epoch = ?", (first.owner_epoch,))
    with pytest.raises(OwnershipLost):
        await put(first, ns, "lost")


async def test_each_opening_has_a_higher_number_and_the_catalog_keeps_its_name(tmp_path: Path) -> None:
    names, epochs = set(), []
    for _ in range(3):
        catalog = await opened(tmp_path / "catalog.db")
        names.add(catalog.catalog_id)
        epochs.append(catalog.owner_epoch)
        await catalog.close()
    assert epochs == [1, 2, 3]
    (name,) = names
    assert len(name) == 32
    assert int(name, 16)
    other = await opened(tmp_path / "other.db")
    assert other.catalog_id != name
    await other.close()


async def test_a_catalog_that_is_not_open_has_no_name_yet(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="not open"):
        _ = SqliteCatalog(tmp_path / "catalog.db").catalog_id


@pytest.fixture
async def unclaimed(tmp_path: Path) -> AsyncIterator[tuple[SqliteCatalog, int]]:
    """Return a catalog with a memory "kept" that was opened while the disk was full, and a namespace."""
    live = await opened(tmp_path / "catalog.db")
    ns = (await support.namespace(live)).ns
    await support.store(live, ns, [NewMemory(text="x" * 100_000, memory_id="kept")])
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    for suffix in ("", "-wal"):  # what a crash leaves: a log that is as long as the limit below allows
        shutil.copy(tmp_path / f"catalog.db{suffix}", crashed / f"catalog.db{suffix}")
    name = live.catalog_id
    await live.close()
    catalog = SqliteCatalog(crashed / "catalog.db")
    with largest_file((crashed / "catalog.db-wal").stat().st_size):
        await catalog.open()
        assert catalog.catalog_id == name
        assert epoch_of(catalog) is None
        with pytest.raises(StorageFailed):
            await put(catalog, ns, "no room")
        assert epoch_of(catalog) is None
    yield catalog, ns
    await catalog.close()


async def test_a_catalog_that_was_opened_on_a_full_disk_is_read_and_claimed_when_there_is_room(
    unclaimed: tuple[SqliteCatalog, int], tmp_path: Path
) -> None:
    catalog, ns = unclaimed
    assert await stored(catalog, ns) == ["kept"]
    await put(catalog, ns, "room again")
    assert epoch_of(catalog) == 2
    successor = await opened(tmp_path / "crashed" / "catalog.db")
    with pytest.raises(OwnershipLost):
        await put(catalog, ns, "lost")
    assert await stored(successor, ns) == ["kept", "room again"]
    await successor.close()


async def test_a_catalog_that_could_not_be_claimed_belongs_to_who_comes_next(
    unclaimed: tuple[SqliteCatalog, int], tmp_path: Path
) -> None:
    catalog, ns = unclaimed
    successor = await opened(tmp_path / "crashed" / "catalog.db")
    with pytest.raises(OwnershipLost):
        await put(catalog, ns, "lost")
    await put(successor, ns, "after")
    assert await stored(successor, ns) == ["kept", "after"]
    await successor.close()
