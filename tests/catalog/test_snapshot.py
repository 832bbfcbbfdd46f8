"""A snapshot is one namespace as of one revision, in a catalog of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clag_server.catalog import schema
from clag_server.catalog.api import NamespaceStats
from clag_server.catalog.copies import check_file
from clag_server.catalog.migrate import HEAD
from clag_server.catalog.snapshot import COPIED, LEFT_OUT
from clag_server.catalog.sqlite import SqliteCatalog
from clag_server.types.errors import NotFound
from clag_server.types.memory import MemoryState
from tests.catalog import support
from tests.catalog.test_copies import many, store, texts, writing
from tests.catalog.test_history import whole_history

__all__ = ["store"]  # the fixture


async def test_a_snapshot_is_a_catalog_of_the_one_namespace(store: SqliteCatalog, tmp_path: Path) -> None:
    ns = (await store.get_namespace("robot")).ns
    expected = await store.list_memories(ns, where=None, after=0, limit=100, embeddings=False)
    revision = await store.snapshot(ns, tmp_path / "snapshot.db")
    assert revision == await store.revision()
    assert b"of another robot" not in (tmp_path / "snapshot.db").read_bytes()
    assert (tmp_path / "snapshot.db").stat().st_mode & 0o777 == 0o600
    assert check_file(tmp_path / "snapshot.db") == HEAD
    copy = SqliteCatalog(tmp_path / "snapshot.db")
    await copy.open()
    assert [namespace.name for namespace in await copy.list_namespaces()] == ["robot"]
    assert await copy.get_namespace("robot") == await store.get_namespace("robot")
    assert await copy.list_memories(ns, where=None, after=0, limit=100) == expected
    assert await copy.stats(ns) == await as_alone(store, ns)
    assert list((await copy.lexical(ns, ["word"], limit=10)).keys) == [1, 2, 3]
    assert (await copy.episodes(ns))[0].memory_count == 3
    assert [entry.changes for entry in await whole_history(copy, ns, "m-0")] == [
        entry.changes for entry in await whole_history(store, ns, "m-0")
    ]
    assert copy.catalog_id != store.catalog_id
    keys = await support.store_keys(copy, ns, 1, prefix="later")
    assert keys[0] > max(memory.key for memory in expected.memories)
    assert [change.memory_id for change in (await copy.changes(after=revision, limit=10)).changes] == ["later-0"]
    await copy.close()


async def as_alone(store: SqliteCatalog, ns: int) -> NamespaceStats:
    """Return a namespace's counters as they are where it is alone and its index is not told anything."""
    return replace(await store.stats(ns), share=1.0, index_backlog=0)


async def test_a_snapshot_taken_while_writers_write_shows_one_moment(store: SqliteCatalog, tmp_path: Path) -> None:
    ns = (await store.get_namespace("robot")).ns
    await many(store, ns)
    before = await texts(store, ns)
    async with writing(store, ns) as acked:
        first = len(acked)
        revision = await store.snapshot(ns, tmp_path / "snapshot.db")
        assert len(acked) > first
    copy = SqliteCatalog(tmp_path / "snapshot.db")
    await copy.open()
    copied = await texts(copy, ns)
    late = copied[len(before) :]
    assert copied[: len(before)] == before
    assert late == acked[: len(late)]
    assert await copy.revision() == revision
    stats = await copy.stats(ns)
    assert sum(stats.by_state[state] for state in MemoryState) == len(copied)
    await copy.close()


async def test_a_snapshot_of_a_namespace_that_does_not_exist_is_refused(
    store: SqliteCatalog, tmp_path: Path
) -> None:
    with pytest.raises(NotFound, match="namespace"):
        await store.snapshot(99, tmp_path / "snapshot.db")
    assert not (tmp_path / "snapshot.db").exists()
    assert not (tmp_path / "snapshot.db.part").exists()


def test_every_table_is_either_part_of_a_snapshot_or_left_out_knowingly() -> None:
    always = {"counters", "namespaces", "memories", "failures"}
    assert {*COPIED, *LEFT_OUT} | always == set(schema.metadata.tables)
