"""Namespaces with unfinished work are opened behind the door: the start does not wait for them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clag_server.catalog.sqlite import SqliteCatalog
from clag_server.memory.config import IngestConfig
from clag_server.memory.system import MemorySystem
from clag_server.types.errors import StorageFailed
from clag_server.types.ingest import AckLevel
from clag_server.types.memory import MemoryState
from tests.memory.builders import new
from tests.memory.system import NAMESPACE, get, system_on, until


async def unfinished(path: Path) -> None:
    """Store a memory that nothing works on."""
    async with system_on(path, ingest=IngestConfig(pipeline=False)) as system:
        await system.create_memory(NAMESPACE, new("left behind", "m0"), request_id="", level=AckLevel.DURABLE)
        assert (await get(system, "m0")).state is MemoryState.STORED


async def stored_elsewhere(system: MemorySystem) -> MemoryState:
    memory = await system.create_memory("elsewhere", new("new", "n0"), request_id="", level=AckLevel.SEARCHABLE)
    return memory.memory.state


async def test_other_namespaces_work_while_one_is_still_being_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await unfinished(tmp_path)
    read = SqliteCatalog.episodes
    reading, go_on = asyncio.Event(), asyncio.Event()

    async def slow(catalog: SqliteCatalog, ns: int, numbers: list[int] | None = None) -> object:
        if ns == 1 and numbers is None:
            reading.set()
            await go_on.wait()
        return await read(catalog, ns, numbers)

    monkeypatch.setattr(SqliteCatalog, "episodes", slow)
    async with system_on(tmp_path, await_resumed=False) as system:
        async with asyncio.timeout(30):
            await reading.wait()
            assert await stored_elsewhere(system) >= MemoryState.EMBEDDED
            assert (await get(system, "m0")).state is MemoryState.STORED
            go_on.set()
            await system.registry.resumed()
        await until(system, "m0", lambda memory: memory.state is MemoryState.EVOLVED)


async def test_a_stop_does_not_wait_for_what_is_still_being_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await unfinished(tmp_path)
    reading = asyncio.Event()

    async def never(catalog: SqliteCatalog, ns: int, numbers: list[int] | None = None) -> object:
        reading.set()
        return await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(SqliteCatalog, "episodes", never)
        async with asyncio.timeout(30):
            async with system_on(tmp_path, await_resumed=False):
                await reading.wait()
    async with system_on(tmp_path) as system:
        await until(system, "m0", lambda memory: memory.state is MemoryState.EVOLVED)


async def test_where_the_catalog_does_not_say_what_is_unfinished_the_first_call_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await unfinished(tmp_path)

    async def failing(_: SqliteCatalog) -> object:
        raise StorageFailed("a torn page")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteCatalog, "backlog", failing)
        async with system_on(tmp_path) as system:
            assert system.registry.running() == ()
            assert await stored_elsewhere(system) >= MemoryState.EMBEDDED
            await system.stats(NAMESPACE)
            await until(system, "m0", lambda memory: memory.state is MemoryState.EVOLVED)
