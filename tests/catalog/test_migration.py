"""A database is brought to the program's schema, or refused with the reason."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from clag_server.catalog import migrate, schema
from clag_server.catalog.sqlite import SqliteCatalog
from clag_server.types.errors import StorageFailed
from tests.catalog import support


async def made(path: Path) -> None:
    catalog = SqliteCatalog(path)
    await catalog.open()
    ns = (await support.namespace(catalog)).ns
    await support.store_keys(catalog, ns, 1)
    await catalog.close()


async def test_migrating_an_empty_file_gives_the_schema_that_the_program_uses(tmp_path: Path) -> None:
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    await catalog.open()
    await catalog.close()
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'catalog.db'}")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, schema.metadata) == []
        tables = {row[0]: row[1] for row in connection.execute(sa.text("SELECT name, sql FROM sqlite_master"))}
    engine.dispose()
    for table in schema.metadata.sorted_tables:
        for index in table.indexes:
            where = index.dialect_options["sqlite"]["where"]
            assert where is None or str(where) in tables[str(index.name)]
        assert ("WITHOUT ROWID" in tables[table.name]) is bool(
            table.dialect_options["sqlite"]["with_rowid"] is False
        )


def test_the_newest_migration_is_the_one_that_the_program_expects() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrate.__file__).parent / "migrations"))
    assert ScriptDirectory.from_config(config).get_heads() == [migrate.HEAD]


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
