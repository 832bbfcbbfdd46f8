"""Every implementation of the catalog passes these tests; a factory opens it again as a new process would.

Tests that take `catalog`, `ns` or `reopen` are the conformance suite: they run for each of `IMPLEMENTATIONS` and
look at the catalog through `catalog.api` alone, or at its SQLite file through `database_file`, which skips them for
the others. After each of them the store is closed and checked by brute force. Tests that make a `SqliteCatalog`
themselves (crashes, group commit, migrations, copies, ownership) are about SQLite and not part of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest

from clag_server.catalog.api import Catalog
from clag_server.catalog.sqlite import SqliteCatalog
from tests.catalog import support
from tests.catalog.consistency import assert_file_consistent

Reopen = Callable[[], Awaitable[Catalog]]


def _sqlite_file(directory: Path) -> Path:
    return directory / "data" / "catalog.db"


IMPLEMENTATIONS: Final[dict[str, Callable[[Path], Catalog]]] = {
    "sqlite": lambda directory: SqliteCatalog(_sqlite_file(directory)),
}
"""Makers of a closed catalog that keeps its data in a directory."""


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request: pytest.FixtureRequest) -> str:
    """Return the name of the implementation under test."""
    name: str = request.param
    return name


@pytest.fixture
async def reopen(implementation: str, tmp_path: Path) -> AsyncIterator[Reopen]:
    """Return a function that closes the store opened last and opens the same store anew."""
    opened: list[Catalog] = []

    async def open_again() -> Catalog:
        if opened:
            await opened[-1].close()
        catalog = IMPLEMENTATIONS[implementation](tmp_path)
        await catalog.open()
        opened.append(catalog)
        return catalog

    yield open_again
    if opened:
        await opened[-1].close()
        if implementation == "sqlite":
            assert_file_consistent(_sqlite_file(tmp_path))


@pytest.fixture
def database_file(implementation: str, tmp_path: Path) -> Path:
    """Return the SQLite file of the catalog under test."""
    if implementation != "sqlite":
        pytest.skip("looks into a SQLite file")
    return _sqlite_file(tmp_path)


@pytest.fixture
async def catalog(reopen: Reopen) -> Catalog:
    """Return an open, empty catalog."""
    return await reopen()


@pytest.fixture
async def ns(catalog: Catalog) -> int:
    """Return a namespace of the catalog."""
    return (await support.namespace(catalog)).ns
