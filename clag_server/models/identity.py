"""What a language model is, so that what was learned of it is not believed of another."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from clag_server.models.manifest import read_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from clag_server.models.folder import ModelFolder

__all__ = ["local_identity", "remote_identity"]


def local_identity(model: ModelFolder, dtype: str) -> str:
    """Return the identity of a model in a folder: its name, a hash of its files, and how its numbers are held.

    Hashes of files come from the manifest; without one, sizes and times of change stand in for them.

    Raises:
        StoreError: The manifest cannot be read.
    """
    manifest = read_manifest(model.path)
    files = manifest.files if manifest is not None else _looks(model.path)
    told = json.dumps(files, sort_keys=True)
    return f"{model.name} {hashlib.sha256(told.encode()).hexdigest()[:32]} {dtype}"


def remote_identity(name: str, address: str) -> str:
    """Return the identity of a model on a server: its name there, and a hash of the server's address."""
    return f"{name} remote {hashlib.sha256(address.encode()).hexdigest()[:32]}"


def _looks(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            facts = path.stat()
            found[path.relative_to(folder).as_posix()] = f"{facts.st_size} {facts.st_mtime_ns}"
    return found
