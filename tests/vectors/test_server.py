"""What only a Milvus server has: other catalogs beside ours, a token, and other people's collections."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clag_server.vectors.address import MilvusServer
from clag_server.vectors.api import IndexState
from clag_server.vectors.errors import BackendAwayError
from clag_server.vectors.index import MilvusIndex
from clag_server.vectors.milvus import Flavor, MilvusConnection
from clag_server.vectors.settings import IndexSettings
from tests.vectors.catalog_double import DIM, MemoryFeed, unit
from tests.vectors.helpers import found, settled, written

QUICK = IndexSettings(first_retry_s=0.05)


async def test_two_sidecars_on_one_server_never_touch_each_others_collections(
    server: MilvusServer, tmp_path: Path
) -> None:
    feeds = [MemoryFeed(), MemoryFeed()]
    indexes = [MilvusIndex(feed, tmp_path / feed.catalog_id, server=server, settings=QUICK) for feed in feeds]
    try:
        for index, feed in zip(indexes, feeds, strict=True):
            await index.start()
            await written(index, feed, 1, rows=30 + len(feed.catalog_id))
        mine, other = indexes
        await mine.rebuild(1, DIM)
        await settled(mine, 1)
        assert set(await found(other, 1, None, unit(0), limit=100)) == feeds[1].current_ids(1)
        await mine.drop(1)
        assert set(await found(other, 1, None, unit(0), limit=100)) == feeds[1].current_ids(1)
        names = await asyncio.to_thread(_names, server)
        assert f"clag_{feeds[0].catalog_id[:12]}_1" not in names
        assert f"clag_{feeds[1].catalog_id[:12]}_1" in names
    finally:
        for index in indexes:
            await index.stop()


def test_a_refused_token_is_what_the_error_says_without_the_token(server: MilvusServer) -> None:
    wrong = MilvusServer(server.uri, "root:wrong-password")
    connection = MilvusConnection(wrong, Flavor.SERVER, owner="", read_timeout_s=10, write_timeout_s=10)
    with pytest.raises(BackendAwayError, match="the token was refused") as refused:
        connection.connect()
    assert "wrong-password" not in str(refused.value)


async def test_memories_are_found_while_the_server_cannot_be_reached(tmp_path: Path) -> None:
    feed = MemoryFeed()
    index = MilvusIndex(feed, tmp_path, server=MilvusServer(f"unix:{tmp_path}/nothing.sock"), settings=QUICK)
    await index.start()
    try:
        placed = feed.put(1, 1, unit(1))
        index.notify(1, DIM)
        assert await found(index, 1, [1], unit(1)) == [placed]
        assert index.status().state is IndexState.STARTING
    finally:
        await index.stop()


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    server = MilvusServer("https://127.0.0.1:1", ca_file=tmp_path / "missing.pem")
    connection = MilvusConnection(server, Flavor.SERVER, owner="", read_timeout_s=10, write_timeout_s=10)
    with pytest.raises(BackendAwayError, match=r"index\.ca_file.*missing\.pem"):
        connection.connect()


def _names(server: MilvusServer) -> list[str]:
    connection = MilvusConnection(server, Flavor.SERVER, owner="", read_timeout_s=10, write_timeout_s=10)
    connection.connect()
    try:
        return connection.collections()
    finally:
        connection.close()
