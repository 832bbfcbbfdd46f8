"""Copies are made while writers write, show one moment, and are complete or absent."""

from __future__ import annotations

import asyncio
import fcntl
import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from clag_server.catalog.copies import STEP_PAGES, CopyStoppedError, backup_file, check_file
from clag_server.catalog.migrate import HEAD
from clag_server.catalog.sqlite import SqliteCatalog
from clag_server.types.errors import StorageFailed
from clag_server.types.memory import NewMemory
from tests.catalog import support
from tests.catalog.consistency import assert_file_consistent
from tests.catalog.test_group_commit import largest_file
from tests.catalog.test_history import evolved, whole_history

NOW = support.NOW


def ignore(_done: int, _total: int) -> None:
    """Take progress and do nothing."""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteCatalog]:
    """Return a catalog with an organized namespace "robot" and another one."""
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    await catalog.open()
    ns = (await support.namespace(catalog)).ns
    await evolved(catalog, ns)
    other = (await support.namespace(catalog, "other")).ns
    await support.store(catalog, other, [NewMemory(text="of another robot", memory_id="secret")])
    yield catalog
    await catalog.close()


async def texts(catalog: SqliteCatalog, ns: int) -> list[str]:
    page = await catalog.list_memories(ns, where=None, after=0, limit=10_000)
    return [memory.text for memory in page.memories]


@asynccontextmanager
async def writing(catalog: SqliteCatalog, ns: int) -> AsyncIterator[list[str]]:
    """Keep storing meanwhile; gives the texts that were acknowledged."""
    acked: list[str] = []
    started = asyncio.Event()

    async def write() -> None:
        while True:
            text = f"note {len(acked)} " + "x" * 2_000
            await support.store(catalog, ns, [NewMemory(text=text)])
            acked.append(text)
            started.set()

    task = asyncio.create_task(write())
    await started.wait()
    yield acked
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def many(catalog: SqliteCatalog, ns: int) -> None:
    """Store enough that a backup takes several steps."""
    text = "y" * 8_000
    while True:
        await support.store(catalog, ns, [NewMemory(text=text) for _ in range(200)])
        with closing(sqlite3.connect(catalog._path)) as connection:
            if connection.execute("PRAGMA page_count").fetchone()[0] > 3 * STEP_PAGES:
                return


async def test_a_backup_made_while_writers_write_is_a_sound_catalog_of_one_moment(
    store: SqliteCatalog, tmp_path: Path
) -> None:
    ns = (await store.get_namespace("robot")).ns
    await many(store, ns)
    before = await texts(store, ns)
    seen: list[tuple[int, int]] = []
    async with writing(store, ns) as acked:
        first = len(acked)
        await store.backup(tmp_path / "backup.db", progress=lambda done, total: seen.append((done, total)))
        assert len(acked) > first  # nobody waited for the backup
    assert check_file(tmp_path / "backup.db") == HEAD
    copy = SqliteCatalog(tmp_path / "backup.db")
    await copy.open()
    copied = await texts(copy, ns)
    assert copied[: len(before)] == before
    late = copied[len(before) :]
    assert late == acked[: len(late)]
    assert copy.catalog_id == store.catalog_id
    assert await whole_history(copy, ns, "m-0") == await whole_history(store, ns, "m-0")
    await copy.close()
    assert_file_consistent(tmp_path / "backup.db")
    assert len(seen) >= 3
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1]


async def test_a_backup_is_one_file_for_its_owner_alone(store: SqliteCatalog, tmp_path: Path) -> None:
    directory = tmp_path / "backups"
    directory.mkdir()
    await store.backup(directory / "backup.db", progress=ignore)
    check_file(directory / "backup.db")
    assert [path.name for path in directory.iterdir()] == ["backup.db"]
    assert (directory / "backup.db").stat().st_mode & 0o777 == 0o600


async def test_the_file_can_be_backed_up_whether_a_server_has_it_open_or_not(
    store: SqliteCatalog, tmp_path: Path
) -> None:
    ns = (await store.get_namespace("robot")).ns
    await asyncio.to_thread(backup_file, tmp_path / "catalog.db", tmp_path / "open.db", ignore)
    await store.close()
    before = (tmp_path / "catalog.db").read_bytes()
    backup_file(tmp_path / "catalog.db", tmp_path / "closed.db", ignore)
    assert (tmp_path / "catalog.db").read_bytes() == before
    for name in ("open.db", "closed.db"):
        copy = SqliteCatalog(tmp_path / name)
        await copy.open()
        assert await texts(copy, ns) == ["note 0", "note 1", "note 2"]
        await copy.close()
    await store.open()


async def test_what_a_killed_server_left_in_its_log_is_in_the_backup(store: SqliteCatalog, tmp_path: Path) -> None:
    ns = (await store.get_namespace("robot")).ns
    (tmp_path / "killed").mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(tmp_path / f"catalog.db{suffix}", tmp_path / "killed" / f"catalog.db{suffix}")
    backup_file(tmp_path / "killed" / "catalog.db", tmp_path / "backup.db", ignore)
    copy = SqliteCatalog(tmp_path / "backup.db")
    await copy.open()
    assert await texts(copy, ns) == ["note 0", "note 1", "note 2"]
    await copy.close()


async def test_a_copy_never_replaces_a_file(store: SqliteCatalog, tmp_path: Path) -> None:
    target = tmp_path / "precious.db"
    target.write_text("precious")
    with pytest.raises(StorageFailed, match="exists already"):
        await store.backup(target, progress=ignore)
    with pytest.raises(StorageFailed, match="exists already"):
        await store.snapshot(1, target)
    assert target.read_text() == "precious"


async def test_a_backup_overwrites_what_a_killed_one_left_but_not_what_another_is_writing(
    store: SqliteCatalog, tmp_path: Path
) -> None:
    part = tmp_path / "backup.db.part"
    part.write_bytes(b"half a backup" * 10_000)
    (tmp_path / "backup.db.part-journal").write_bytes(b"of the half")
    with part.open("rb+") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StorageFailed, match="another copy"):
            await store.backup(tmp_path / "backup.db", progress=ignore)
        assert part.stat().st_size == 130_000
    await store.backup(tmp_path / "backup.db", progress=ignore)
    assert not part.exists()
    assert check_file(tmp_path / "backup.db") == HEAD


async def test_a_copy_that_finds_no_room_leaves_nothing_behind(store: SqliteCatalog, tmp_path: Path) -> None:
    ns = (await store.get_namespace("robot")).ns
    await many(store, ns)
    (tmp_path / "full").mkdir()
    with largest_file(100_000):
        with pytest.raises(StorageFailed):
            await store.backup(tmp_path / "full" / "backup.db", progress=ignore)
        with pytest.raises(StorageFailed):
            await store.snapshot(ns, tmp_path / "full" / "snapshot.db")
    assert list((tmp_path / "full").iterdir()) == []
    with pytest.raises(StorageFailed, match="nowhere"):
        await store.backup(tmp_path / "nowhere" / "backup.db", progress=ignore)


async def test_a_backup_that_is_stopped_leaves_nothing_behind(store: SqliteCatalog, tmp_path: Path) -> None:
    await many(store, (await store.get_namespace("robot")).ns)
    (tmp_path / "stopped").mkdir()
    stop = threading.Event()
    with pytest.raises(CopyStoppedError):
        backup_file(tmp_path / "catalog.db", tmp_path / "stopped" / "backup.db", lambda *_: stop.set(), stop=stop)
    assert not any((tmp_path / "stopped").iterdir())


async def test_a_caller_that_is_cancelled_goes_when_its_backup_is_over_complete_or_absent(
    store: SqliteCatalog, tmp_path: Path
) -> None:
    await many(store, (await store.get_namespace("robot")).ns)
    begun = asyncio.Event()
    target = tmp_path / "cancelled" / "backup.db"
    target.parent.mkdir()
    backup = asyncio.create_task(store.backup(target, progress=lambda _done, _total: begun.set()))
    await begun.wait()
    backup.cancel()
    with pytest.raises(asyncio.CancelledError):
        await backup
    left = [path.name for path in target.parent.iterdir()]
    assert left in ([], ["backup.db"])
    if left:
        assert check_file(target) == HEAD


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for at in range(20_000, len(data), 8_192):
        data[at : at + 512] = b"\xff" * 512
    path.write_bytes(data)


async def test_a_damaged_backup_is_found_out_before_it_is_restored(store: SqliteCatalog, tmp_path: Path) -> None:
    await store.backup(tmp_path / "backup.db", progress=ignore)
    damage(tmp_path / "backup.db")
    with pytest.raises(StorageFailed):
        check_file(tmp_path / "backup.db")


async def test_a_damaged_catalog_is_not_backed_up_as_if_it_were_sound(store: SqliteCatalog, tmp_path: Path) -> None:
    await store.backup(tmp_path / "damaged.db", progress=ignore)
    damage(tmp_path / "damaged.db")
    with pytest.raises(StorageFailed):
        backup_file(tmp_path / "damaged.db", tmp_path / "backup.db", ignore)
    assert not (tmp_path / "backup.db").exists()


async def test_a_file_that_is_no_catalog_of_ours_is_refused_by_name(store: SqliteCatalog, tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="there is no file"):
        check_file(tmp_path / "missing.db")
    with closing(sqlite3.connect(tmp_path / "recipes.db")) as connection, connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    with pytest.raises(StorageFailed, match="is no catalog"):
        check_file(tmp_path / "recipes.db")
    with pytest.raises(StorageFailed, match="is no catalog"):
        backup_file(tmp_path / "recipes.db", tmp_path / "backup.db", ignore)
    (tmp_path / "letter.db").write_bytes(b"dear friend, " * 1_000)
    with pytest.raises(StorageFailed, match="not a database"):
        check_file(tmp_path / "letter.db")
    await store.backup(tmp_path / "newer.db", progress=ignore)
    with closing(sqlite3.connect(tmp_path / "newer.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StorageFailed, match="schema 9999"):
        check_file(tmp_path / "newer.db")
