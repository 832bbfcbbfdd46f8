"""A vector index on each backend: a Milvus Lite child in a temporary directory, and a real Milvus server."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from clag_server.vectors.address import MilvusServer
from clag_server.vectors.index import MilvusIndex
from clag_server.vectors.milvus import Flavor
from clag_server.vectors.settings import IndexSettings
from tests.support.milvus_server import SERVER_TOKEN, milvus_server, why_no_server
from tests.vectors.catalog_double import MemoryFeed

OpenIndex = Callable[..., Awaitable[MilvusIndex]]

BACKENDS = [Flavor.LITE, Flavor.SERVER]


@pytest.fixture(scope="session")
def server() -> Iterator[MilvusServer]:
    """A Milvus server for all tests; each has catalogs of its own on it."""
    if reason := why_no_server():
        pytest.skip(reason)
    # Not pytest's own: a Unix socket's path must be short.
    folder = Path(tempfile.mkdtemp(prefix="clag-milvus-"))
    try:
        with milvus_server(folder) as uri:
            yield MilvusServer(uri, SERVER_TOKEN)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def server_of(request: pytest.FixtureRequest, flavor: Flavor) -> MilvusServer | None:
    """Return the server where the flavor needs one, started by the first test that asks."""
    if flavor is Flavor.LITE:
        return None
    found = request.getfixturevalue("server")
    assert isinstance(found, MilvusServer)
    return found


@pytest_asyncio.fixture
async def open_index(tmp_path: Path) -> AsyncIterator[OpenIndex]:
    """Starts indexes on `tmp_path`, one at a time, and stops what a test left running."""
    async for start in _opener(tmp_path, None):
        yield start


@pytest_asyncio.fixture(params=BACKENDS, ids=lambda flavor: flavor.value)
async def open_on_either(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenIndex]:
    """The same on Milvus Lite and on a server."""
    async for start in _opener(tmp_path, server_of(request, request.param)):
        yield start


async def _opener(folder: Path, server: MilvusServer | None) -> AsyncIterator[OpenIndex]:
    opened: list[MilvusIndex] = []

    async def start(feed: MemoryFeed, settings: IndexSettings | None = None) -> MilvusIndex:
        tuning = settings or IndexSettings(first_retry_s=0.05)
        index = MilvusIndex(feed, folder, server=server, settings=tuning)
        opened.append(index)
        await index.start()
        return index

    yield start
    for index in opened:
        await index.stop()
