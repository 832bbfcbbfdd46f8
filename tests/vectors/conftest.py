"""A vector index on a real Milvus Lite child in a temporary directory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest_asyncio

from clag_server.vectors.index import MilvusIndex
from clag_server.vectors.settings import IndexSettings
from tests.vectors.catalog_double import MemoryFeed

OpenIndex = Callable[..., Awaitable[MilvusIndex]]


@pytest_asyncio.fixture
async def open_index(tmp_path: Path) -> AsyncIterator[OpenIndex]:
    """Starts indexes on `tmp_path`, one at a time, and stops what a test left running."""
    opened: list[MilvusIndex] = []

    async def start(feed: MemoryFeed, settings: IndexSettings | None = None) -> MilvusIndex:
        index = MilvusIndex(feed, tmp_path, settings=settings or IndexSettings(first_retry_s=0.05))
        opened.append(index)
        await index.start()
        return index

    yield start
    for index in opened:
        await index.stop()
