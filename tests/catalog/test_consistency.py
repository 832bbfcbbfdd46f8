"""The brute-force check that the catalog's tests rely on finds what is wrong with a file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from clag_server.catalog.sqlite import SqliteCatalog
from tests.catalog import support
from tests.catalog.consistency import assert_file_consistent

DAMAGE: dict[str, str] = {
    "a count of a namespace": "UPDATE namespaces SET memories = memories + 1",
    "a count of placements": "UPDATE namespaces SET placed = 0",
    "a digest": "UPDATE namespaces SET placed_digest = placed_digest + 1",
    "a count of a cluster": "UPDATE clusters SET memory_count = 7",
    "a sum of an episode": "UPDATE episodes SET vector_sum = zeroblob(length(vector_sum)) WHERE episode = 1",
    "a lost episode": "DELETE FROM episodes WHERE episode = 1",
    "a memory that is elsewhere": "UPDATE memories SET cluster = 2 WHERE memory_id = 'm-0'",
    "half a place": "UPDATE memories SET episode = NULL WHERE memory_id = 'm-0'",
    "a state without its place": "UPDATE memories SET state = 1 WHERE memory_id = 'm-0'",
    "a lost lexical entry": "DELETE FROM fts_1 WHERE rowid = 1",
    "a lost step of the outbox": "DELETE FROM index_ops WHERE seq = 3",
    "a link to nobody": "UPDATE memories SET links = '[[\"gone\",1,\"\",0.0]]' WHERE memory_id = 'm-0'",
    "superseded by nobody": "UPDATE memories SET superseded_by = 'gone' WHERE memory_id = 'm-0'",
    "a representative that is gone": "UPDATE clusters SET representatives = '[999]'",
    "rows of a namespace that is gone": "UPDATE sessions SET ns = 9",
    "a number given out twice": "UPDATE counters SET key = 2",
    "history of a memory that is gone": (
        "INSERT INTO memory_history (revision, ns, key, cause, time_ns, old) VALUES (1, 1, 99, 1, 1, '{}')"
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_the_check_finds(damage: str, tmp_path: Path) -> None:
    await _damaged(tmp_path, lambda connection: connection.execute(DAMAGE[damage]))
    with pytest.raises(AssertionError):
        assert_file_consistent(tmp_path / "catalog.db")


async def test_the_check_finds_nothing_where_nothing_is_wrong(tmp_path: Path) -> None:
    await _damaged(tmp_path, lambda _: None)
    assert_file_consistent(tmp_path / "catalog.db")


async def _damaged(directory: Path, damage: Callable[[sqlite3.Connection], object]) -> None:
    catalog = SqliteCatalog(directory / "catalog.db")
    await catalog.open()
    await support.organized(catalog, (await support.namespace(catalog)).ns)
    await catalog.close()
    with closing(sqlite3.connect(directory / "catalog.db")) as connection, connection:
        damage(connection)
