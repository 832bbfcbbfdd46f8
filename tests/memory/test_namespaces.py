"""Namespaces as a whole: created within a limit, set under an etag, deleted to the last row."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from clag_server.memory.config import IngestConfig
from clag_server.types.errors import (
    AlreadyExists,
    EmbedderNotServed,
    EtagMismatch,
    NamespaceDeleted,
    NamespaceLimit,
    NotFound,
)
from clag_server.types.ingest import AckLevel, IngestStages
from clag_server.types.namespace import NamespaceSettings
from clag_server.types.operation import OperationState
from tests.memory.builders import new
from tests.memory.system import NAMESPACE, ended, found, get, remember, system_on


async def test_a_namespace_can_be_created_once_and_keeps_its_settings(tmp_path: Path) -> None:
    settings = NamespaceSettings(purpose="fetches crates", auto_reorganize=False)
    async with system_on(tmp_path) as system:
        created = await system.whole.create("a", settings, embedding_model="scripted-embedder")
        assert created.settings == settings
        with pytest.raises(AlreadyExists):
            await system.whole.create("a", settings, embedding_model="")
    async with system_on(tmp_path) as system:
        assert (await system.whole.get("a")).settings == settings


async def test_a_namespace_for_another_embedder_than_the_servers_is_refused(tmp_path: Path) -> None:
    async with system_on(tmp_path) as system:
        with pytest.raises(EmbedderNotServed):
            await system.whole.create("a", NamespaceSettings(), embedding_model="another")


async def test_a_namespace_beyond_the_limit_is_refused_whoever_asks_for_it(tmp_path: Path) -> None:
    async with system_on(tmp_path, ingest=IngestConfig(max_namespaces=1)) as system:
        await remember(system, ["a note"])
        with pytest.raises(NamespaceLimit):
            await system.whole.create("b", NamespaceSettings(), embedding_model="")
        with pytest.raises(NamespaceLimit):
            await system.create_memory("b", new("a note"), request_id="", level=AckLevel.DURABLE)
        await remember(system, ["another note"], first=1)


async def test_settings_change_under_the_current_etag_only(tmp_path: Path) -> None:
    async with system_on(tmp_path) as system:
        created = await system.whole.create("a", NamespaceSettings(purpose="old"), embedding_model="")
        changed = await system.whole.update(
            "a", lambda s: replace(s, auto_reorganize=True), etag=str(created.revision)
        )
        assert changed.settings == NamespaceSettings(purpose="old", auto_reorganize=True)
        with pytest.raises(EtagMismatch):
            await system.whole.update("a", lambda s: replace(s, purpose=""), etag=str(created.revision))


async def test_a_deleted_namespace_leaves_nothing_and_its_name_can_be_used_again(tmp_path: Path) -> None:
    async with system_on(tmp_path) as system:
        await remember(system, ["the red crate", "the blue barrel"])
        operation = await ended(system, await system.whole.delete(NAMESPACE))
        assert operation.state is OperationState.SUCCEEDED
        with pytest.raises(NotFound):
            await get(system, "m0")
        await remember(system, ["the green box"])
        assert [hit.memory.text for hit in await found(system, "crate barrel box")] == ["the green box"]
        assert (await system.operations.get(operation.operation_id)).namespace == NAMESPACE


async def test_an_open_stream_learns_that_its_namespace_is_deleted(tmp_path: Path) -> None:
    async with system_on(tmp_path) as system:
        session = await system.open_ingest(NAMESPACE, "s", level=AckLevel.DURABLE, stages=IngestStages.ALL)
        operation = await system.whole.delete(NAMESPACE)
        async with asyncio.timeout(20):
            await session.namespace_deleted()
        with pytest.raises(NamespaceDeleted):
            await session.append(1, [new("too late", "late")])
        await session.close()
        await ended(system, operation)
        with pytest.raises(NotFound):
            await get(system, "late")


async def test_two_calls_begin_one_deletion(tmp_path: Path) -> None:
    async with system_on(tmp_path) as system:
        await remember(system, ["the red crate"])
        first, second = await asyncio.gather(system.whole.delete(NAMESPACE), system.whole.delete(NAMESPACE))
        assert first.operation_id == second.operation_id
        await ended(system, first)


async def test_a_deletion_goes_on_after_a_restart_and_nothing_comes_back(tmp_path: Path) -> None:
    async with system_on(tmp_path) as system:
        await remember(system, ["the red crate"])
        namespace = await system.whole.get(NAMESPACE)
        # As after a kill right behind the mark: nothing had begun yet.
        await system.registry.opened(NAMESPACE).state.catalog.mark_deleting(namespace.ns, now_ns=1)  # type: ignore[union-attr]
    async with system_on(tmp_path) as system:
        (operation,) = await system.operations.list(ns=namespace.ns, before="", limit=5)
        assert (await ended(system, operation)).state is OperationState.SUCCEEDED
        with pytest.raises(NotFound):
            await system.whole.get(NAMESPACE)
