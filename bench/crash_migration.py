"""Kills in the migration of a catalog: afterwards the file has the old schema or the new one, whole.

The old catalog is made of a new one: its rows, as far as the old schema has columns for them.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from clag.v1 import admin_service_pb2 as admin_pb

from bench.crash_catalog import copied, look
from bench.crash_ledger import Ledger, Verdict, verify
from bench.crash_texts import NAMESPACE, input_of
from bench.crash_verify import full_check
from bench.store_support import StoreServer, settled
from clag_server.catalog import migrate

OLDEST: Final = "0001"
_MEMORIES: Final = 400
_POLL_S: Final = 0.0005


async def killed_in_migration(root: Path, kills: int, rng: random.Random) -> Verdict:
    """Kill a server `kills` times while it migrates a fresh copy of an old catalog; returns what was wrong."""
    total = Verdict()
    server = StoreServer(root)
    ledger = Ledger()
    old = root / "old.db"
    try:
        await _fill(server, ledger)
        await asyncio.to_thread(older_copy, server.catalog, old)
        took_s = await _migration_s(server, old)
        found = []
        for number in range(kills):
            await asyncio.to_thread(_put, old, server)
            await server.spawn()
            await _appears(server.catalog.with_name(f"{server.catalog.name}-wal"), server)
            await asyncio.sleep(rng.uniform(0.0, 1.2 * took_s))
            await server.power_cut()
            found.append(_left(server, ledger, total))
            await server.start()
            total.add(await _asked(server, ledger))
            await server.stop()
            if not total.clean:
                total.faults = [f"migration kill {number + 1}: {fault}" for fault in total.faults]
                break
        print(f"killed in migration (of {took_s * 1000:.0f} ms): left at schema {', '.join(found)}", flush=True)
    finally:
        await server.close()
    return total


def older_copy(catalog: Path, target: Path, revision: str = OLDEST) -> None:
    """Write a catalog of an older schema with the rows of `catalog`, whose server has stopped."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrate.__file__).parent / "migrations"))
    engine = sa.create_engine(f"sqlite:///{target}")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    engine.dispose()
    with closing(sqlite3.connect(target, isolation_level=None)) as old:
        old.execute("ATTACH ? AS new", (str(catalog),))
        for name, sql in old.execute(
            "SELECT name, sql FROM new.sqlite_master WHERE sql LIKE 'CREATE VIRTUAL%USING fts5(%'"
        ):
            old.execute(sql)
            old.execute(f"INSERT INTO {name} (rowid, tokens) SELECT rowid, tokens FROM new.{name}")  # noqa: S608
        for (table,) in old.execute(
            "SELECT name FROM main.sqlite_master WHERE type = 'table' AND name NOT LIKE 'fts%'"
            " AND name NOT LIKE 'sqlite%' AND name <> 'alembic_version'"
        ).fetchall():
            columns = ", ".join(f'"{row[1]}"' for row in old.execute(f"PRAGMA main.table_info({table})"))
            old.execute(f"DELETE FROM main.{table}")  # noqa: S608 - our own tables
            old.execute(f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM new.{table}")  # noqa: S608
        old.execute("PRAGMA journal_mode = WAL")


def schema_of(connection: sqlite3.Connection) -> str:
    """The schema revision of an open catalog."""
    return str(connection.execute("SELECT version_num FROM alembic_version").fetchone()[0])


async def _fill(server: StoreServer, ledger: Ledger) -> None:
    await server.start()
    async with server.client() as client:
        entries = [ledger.new(f"given-{serial}") for serial in range(_MEMORIES)]
        async with client.ingest(NAMESPACE, map(input_of, entries)) as ingestion:
            await ingestion.wait()
        for entry in entries:
            ledger.stored(entry.serial)
        await settled(client, NAMESPACE, (admin_pb.STAGE_EMBED,))
    await server.stop()


def _put(old: Path, server: StoreServer) -> None:
    shutil.rmtree(server.data_dir, ignore_errors=True)
    server.data_dir.mkdir(parents=True, mode=0o700)
    shutil.copy(old, server.catalog)


async def _migration_s(server: StoreServer, old: Path) -> float:
    """Seconds from the opening of the file to the end of its migration, undisturbed."""
    await asyncio.to_thread(_put, old, server)
    await server.spawn()
    await _appears(server.catalog.with_name(f"{server.catalog.name}-wal"), server)
    started = time.perf_counter()
    with closing(sqlite3.connect(f"file:{server.catalog}?mode=ro", uri=True)) as reader:
        while schema_of(reader) == OLDEST and server.running:  # noqa: ASYNC110 - another process writes
            await asyncio.sleep(_POLL_S)
        took_s = time.perf_counter() - started
    await server.serving()
    await server.stop()
    return took_s


async def _appears(path: Path, server: StoreServer) -> None:
    while not os.path.exists(path) and server.running:  # noqa: ASYNC110, ASYNC240, PTH110 - another's file
        await asyncio.sleep(_POLL_S)


def _left(server: StoreServer, ledger: Ledger, total: Verdict) -> str:
    """Check the files of a killed migration; returns the schema that they have."""
    with copied(server.catalog) as connection:
        schema = schema_of(connection)
        if schema == migrate.HEAD:
            seen, verdict = look(connection, NAMESPACE)
            verdict.add(verify(ledger, seen))
            total.add(verdict)
        elif schema != OLDEST:
            total.misplace(f"the file was left at schema {schema}")
        elif (there := connection.execute("SELECT count(*) FROM memories").fetchone()[0]) != _MEMORIES:
            total.lose(f"the old file has {there} of {_MEMORIES} memories")
    return schema


async def _asked(server: StoreServer, ledger: Ledger) -> Verdict:
    async with server.client() as client:
        return await full_check(client, ledger)
