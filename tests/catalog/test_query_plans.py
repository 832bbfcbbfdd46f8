"""What a question reads is found by index: the work follows what is asked for, not what is stored."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from clag_server.catalog import readers
from clag_server.catalog.api import Catalog
from clag_server.catalog.connections import connect_reader, driver_of
from clag_server.catalog.sqlite import SqliteCatalog
from tests.catalog import support

READS: dict[str, Callable[[Catalog, int, list[int]], Awaitable[object]]] = {
    "members of keys": lambda catalog, ns, keys: catalog.members_of(ns, keys),
    "members of episodes": lambda catalog, ns, _: catalog.episode_members(ns, [1, 2]),
    "memories": lambda catalog, ns, keys: catalog.memories(ns, keys),
    "keys of placements": lambda catalog, ns, _: catalog.keys_of_placements(ns, [1, 2, 3]),
    "placements of clusters": lambda catalog, ns, _: catalog.placements_in(ns, [1, 2]),
    "clusters": lambda catalog, ns, _: catalog.clusters(ns, [1, 2]),
    "episodes": lambda catalog, ns, _: catalog.episodes(ns, [1, 2]),
}


@pytest.mark.parametrize("read", READS)
async def test_a_read_of_a_question_looks_rows_up_and_walks_through_no_table(
    read: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []

    def traced(engine: sa.Engine) -> sa.Connection:
        connection = connect_reader(engine)
        driver_of(connection).set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr(readers, "connect_reader", traced)
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    await catalog.open()
    ns = (await support.namespace(catalog)).ns
    keys = await support.organized(catalog, ns)
    statements.clear()
    await READS[read](catalog, ns, keys)
    await catalog.close()
    asked = [statement for statement in statements if statement.lstrip().upper().startswith("SELECT")]
    assert asked
    with sqlite3.connect(tmp_path / "catalog.db") as connection:
        for statement in asked:
            steps = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
            searches = [step for step in steps if step.startswith(("SEARCH", "SCAN"))]
            assert searches, statement
            for step in searches:
                # An equation beyond the namespace: `(ns=?)` alone, or a range after it, is most of the table.
                assert step.startswith("SEARCH"), step
                assert "rowid=?" in step or step.count("=?") >= 2, step
