"""The bundled models for tests marked `models`: taken from the user's cache, fetched when they are not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clag_server.models.specs import KNOWN_MODELS
from clag_server.models.store import ModelStore


@pytest.fixture(scope="session")
def model_cache() -> Path:
    cache = Path(os.environ.get("CLAG_CACHE", "~/.cache/clag")).expanduser()
    store = ModelStore(cache)
    for spec in KNOWN_MODELS:
        store.pull(spec)
    return cache
