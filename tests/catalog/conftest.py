"""Every implementation of the catalog passes these tests; a factory opens it again as a new process would."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from clag_server.catalog.api import Catalog
from clag_server.catalog.sqlite import SqliteCatalog
from tests.catalog import support

Reopen = Callable[[], Awaitable[Catalog]]


@pytest.fixture(params=["sqlite"])
async def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Reopen]:
    """Return a function that closes the store opened last and opens the same store anew."""
    opened: list[Catalog] = []

    async def open_again() -> Catalog:
        if opened:
            await opened[-1].close()
        makers = {"sqlite": lambda: SqliteCatalog(tmp_path / "data" / "catalog.db")}
        catalog: Catalog = makers[request.param]()
        await catalog.open()
        opened.append(catalog)
        return catalog

    yield open_again
    if opened:
        await opened[-1].close()


@pytest.fixture
async def catalog(reopen: Reopen) -> Catalog:
    """Return an open, empty catalog."""
    return await reopen()


@pytest.fixture
async def ns(catalog: Catalog) -> int:
    """Return a namespace of the catalog."""
    return (await support.namespace(catalog)).ns
