"""A database is brought to the program's schema, or refused with the reason."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from clag_server.catalog import migrate, schema
from clag_server.catalog.connections import connect_writer, driver_of, make_engine
from clag_server.catalog.sqlite import SqliteCatalog
from clag_server.types.change import ChangeKind, HistoryCause
from clag_server.types.digest import placements_digest
from clag_server.types.errors import StorageFailed
from clag_server.types.memory import MemoryState
from tests.catalog import support
from tests.catalog.consistency import assert_file_consistent
from tests.catalog.dump import load
from tests.catalog.test_changes import all_changes
from tests.catalog.test_history import fields, whole_history

HERE: Final = Path(__file__).parent
DUMPS: Final = sorted(HERE.glob("schema_*.sql"))
"""Catalogs that older releases wrote, with rows in every table (see `dump`)."""

PLACED: Final = "SELECT placement_id, cluster FROM memories WHERE ns = {ns} AND placement_id IS NOT NULL"


def config(connection: sa.Connection | None = None) -> Config:
    made_of = Config()
    made_of.set_main_option("script_location", str(Path(migrate.__file__).parent / "migrations"))
    made_of.attributes["connection"] = connection
    return made_of


def older_schemas() -> list[str]:
    """Return the revisions of all schemas but the newest, oldest first."""
    revisions = [script.revision for script in ScriptDirectory.from_config(config()).walk_revisions()]
    return sorted(set(revisions) - {migrate.HEAD})


def first_release(path: Path, *, up_to: str = "0001") -> None:
    """Make the catalog that the first release wrote, upgraded to a later schema."""
    load(HERE / "schema_0001.sql", path)
    with closing(connect_writer(make_engine(path))) as connection:
        driver_of(connection).execute("BEGIN IMMEDIATE")
        command.upgrade(config(connection), up_to)
        driver_of(connection).execute("COMMIT")


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


async def made(path: Path) -> None:
    catalog = SqliteCatalog(path)
    await catalog.open()
    ns = (await support.namespace(catalog)).ns
    await support.store_keys(catalog, ns, 1)
    await catalog.close()


def differences(path: Path) -> list[Any]:
    """Return how a catalog's tables differ from those that the program uses; full-text tables are its own."""

    def core(name: str | None, kind: str, _: object) -> bool:
        return not (kind == "table" and name is not None and name.startswith(("fts_", "terms_")))

    with closing(connect_writer(make_engine(path))) as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "include_name": core})
        found: list[Any] = compare_metadata(context, schema.metadata)
        return found


async def test_migrating_an_empty_file_gives_the_schema_that_the_program_uses(tmp_path: Path) -> None:
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    await catalog.open()
    await catalog.close()
    assert differences(tmp_path / "catalog.db") == []
    tables = dict(query(tmp_path / "catalog.db", "SELECT name, sql FROM sqlite_master"))
    for table in schema.metadata.sorted_tables:
        for index in table.indexes:
            where = index.dialect_options["sqlite"]["where"]
            assert where is None or str(where) in tables[str(index.name)]
        assert ("WITHOUT ROWID" in tables[table.name]) is bool(
            table.dialect_options["sqlite"]["with_rowid"] is False
        )


def test_the_newest_migration_is_the_one_that_the_program_expects() -> None:
    assert ScriptDirectory.from_config(config()).get_heads() == [migrate.HEAD]


@pytest.mark.parametrize("dumped", DUMPS, ids=[path.stem for path in DUMPS])
def test_catalogs_of_older_releases_have_rows_in_every_table_they_knew(dumped: Path, tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    load(dumped, path)
    assert query(path, "SELECT version_num FROM alembic_version") == [(dumped.stem.removeprefix("schema_"),)]
    tables = [row[0] for row in query(path, "SELECT name FROM sqlite_master WHERE type = 'table'")]
    empty = [table for table in tables if not query(path, f"SELECT 1 FROM {table} LIMIT 1")]  # noqa: S608
    assert empty == []


@pytest.mark.parametrize("revision", older_schemas())
async def test_a_catalog_of_every_older_schema_is_upgraded_whole(revision: str, tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    first_release(path, up_to=revision)
    memories = "SELECT key, ns, memory_id, state, text, cluster, embedding FROM memories ORDER BY key"
    before = query(path, memories)
    catalog = SqliteCatalog(path)
    await catalog.open()
    robot, other = [await catalog.get_namespace(name) for name in ("robot", "other")]
    assert query(path, memories) == before
    for namespace in (robot, other):
        placed = query(path, PLACED.format(ns=namespace.ns))
        digest = placements_digest([row[0] for row in placed], [row[1] for row in placed])
        assert (await catalog.index_head(namespace.ns)).digest == digest != 0
    assert len(catalog.catalog_id) == 32
    await assert_old_content(catalog, robot.ns)
    await support.store_keys(catalog, robot.ns, 2, prefix="later")
    await catalog.delete(robot.ns, "m-1", etag="", now_ns=support.NOW)
    await catalog.close()
    assert_file_consistent(path)
    assert differences(path) == []


async def assert_old_content(catalog: SqliteCatalog, ns: int) -> None:
    """What the first release stored reads as it did, and its log and history in today's words."""
    memory = await catalog.memory(ns, "m-0", embedding=True)
    assert (memory.text, memory.attributes["who"]) == ("crate 0 was seen at the dock; 猫 0", "it's")
    assert (memory.state, memory.cluster, memory.access_count) == (MemoryState.EVOLVED, 2, 1)
    assert [link.memory_id for link in memory.links] == ["m-1"]
    assert list((await catalog.lexical(ns, ["猫"], limit=9)).keys) == [5, 6]
    assert (await catalog.memory(ns, "m-7")).state is MemoryState.QUARANTINED
    assert (await catalog.open_stream(ns, "feed")).next_seq == 10
    entries = await whole_history(catalog, ns, "m-0")
    assert [entry.cause for entry in entries][-1] is HistoryCause.CLIENT
    contexts = [fields(entry)["context"] for entry in entries if "context" in fields(entry)]
    assert contexts == [('"a crate"', '"a crate, moved"'), ("", '"a crate"')]
    moves = [fields(entry)["cluster_id"] for entry in entries if "cluster_id" in fields(entry)]
    assert moves == [('"c1"', '"c2"')]
    superseded = await whole_history(catalog, ns, "m-3")
    assert HistoryCause.CONFLICT in {entry.cause for entry in superseded}
    changes = await all_changes(catalog)
    assert (ChangeKind.MEMORY_DELETED, "m-2") in {(change.kind, change.memory_id) for change in changes}
    assert (ChangeKind.MEMORY_CREATED, "m-2") in {(change.kind, change.memory_id) for change in changes}


def test_a_kill_between_any_two_statements_of_a_migration_leaves_the_old_schema_or_the_new_one_whole(
    tmp_path: Path,
) -> None:
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    load(HERE / "schema_0001.sql", old)
    first_release(new, up_to="head")
    done = subprocess.run(
        [sys.executable, "-m", "tests.catalog.migration_child", str(old), str(tmp_path)],
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    count = int(done.stdout)
    assert count > 20  # statements of the migrations
    schemas = {definition(old): "old", definition(new): "new"}
    assert len(schemas) == 2
    found = []
    for statement in range(count):
        path = tmp_path / f"{statement}.db"
        assert query(path, "PRAGMA integrity_check") == [("ok",)]
        found.append(schemas[definition(path)])
    assert found == ["old"] * (count - 1) + ["new"]


def definition(path: Path) -> tuple[Any, ...]:
    """Return the schema, its revision, and how many memories there are."""
    return (
        *query(path, "SELECT name, sql FROM sqlite_master ORDER BY name"),
        *query(path, "SELECT version_num FROM alembic_version"),
        *query(path, "SELECT count(*), sum(key) FROM memories"),
    )


async def test_a_database_of_a_newer_program_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    await made(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(StorageFailed, match="schema 9999"):
        await SqliteCatalog(path).open()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM memories").fetchone() == (1,)
    connection.close()


async def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()
    with pytest.raises(StorageFailed, match="recipes"):
        await SqliteCatalog(path).open()


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    path.write_bytes(b"this is not a database, it is a letter to a friend" * 99)
    with pytest.raises(StorageFailed, match="not a database"):
        await SqliteCatalog(path).open()
    with pytest.raises(StorageFailed):
        await SqliteCatalog(path / "below a file" / "catalog.db").open()
