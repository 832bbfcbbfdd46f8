"""Servers for tests: one shared by all that only need a namespace of their own, and fresh ones for the others."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import settings

from tests.support.process import ServerProcess, Stubs

# A loaded machine is no fault of the code: no test asserts a time.
settings.register_profile("clag", deadline=None)
settings.load_profile("clag")

ServerMaker: TypeAlias = Callable[..., ServerProcess]


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A running server with scripted models. Tests must not change its script, stop it or count its namespaces."""
    with ServerProcess(tmp_path_factory.mktemp("shared")) as server:
        yield server.start()


@pytest.fixture(scope="session")
def stubs(shared_server: ServerProcess) -> Stubs:
    """Stubs to the shared server."""
    return shared_server.connect()


@pytest.fixture
def namespace() -> str:
    """A namespace that no other test uses."""
    return f"t-{uuid.uuid4().hex[:16]}"


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[ServerMaker]:
    """Makes servers that this test alone uses; none is started yet. Those of one root share their data."""
    made: list[ServerProcess] = []

    def make(root: str = "server", **settings: str) -> ServerProcess:
        dotted = {key.replace("__", "."): value for key, value in settings.items()}
        made.append(ServerProcess(tmp_path / root, dotted))
        return made[-1]

    yield make
    for server in made:
        server.close()
