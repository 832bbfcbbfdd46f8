"""What a model folder says about itself: dimension, window, pooling, and the identity of its vector space."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clag_server.models.manifest import hash_file, read_manifest
from clag_server.models.specs import ModelKind, StoreError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["EmbedderInfo", "ModelFolder", "Pooling", "read_embedder_info", "vector_space_fingerprint"]

Pooling = str
"""`mean` or `cls`: how a text's vector is made from its tokens' vectors."""

_VECTOR_SPACE_FILES = ("model.safetensors", "tokenizer.json", "config.json")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model that is complete on this machine."""

    name: str
    kind: ModelKind
    path: Path


@dataclass(frozen=True, slots=True)
class EmbedderInfo:
    """An embedder's facts, read without loading it."""

    dim: int
    window_tokens: int
    pooling: Pooling


def read_embedder_info(folder: Path, window_tokens: int) -> EmbedderInfo:
    """Read an embedder's facts from its configuration files.

    Args:
        folder: The model folder.
        window_tokens: Upper bound of the window.

    Raises:
        StoreError: No configuration, or a way of pooling that is not supported.
    """
    config = _read_json(folder / "config.json")
    if config is None:
        raise StoreError(f"{folder} has no config.json: not a model folder")
    dim = config.get("hidden_size")
    if not isinstance(dim, int):
        raise StoreError(f"{folder / 'config.json'} has no hidden_size: not an encoder")
    sentence = _read_json(folder / "sentence_bert_config.json") or {}
    limits = [sentence.get("max_seq_length"), config.get("max_position_embeddings"), window_tokens]
    window = min(one for one in limits if isinstance(one, int))
    pooling = _read_json(folder / "1_Pooling" / "config.json") or {"pooling_mode_mean_tokens": True}
    modes = {name for name, on in pooling.items() if name.startswith("pooling_mode_") and on is True}
    if modes == {"pooling_mode_mean_tokens"}:
        return EmbedderInfo(dim, window, "mean")
    if modes == {"pooling_mode_cls_token"}:
        return EmbedderInfo(dim, window, "cls")
    raise StoreError(f"{folder} pools by {', '.join(sorted(modes)) or 'nothing'}: only mean and cls are supported")


def vector_space_fingerprint(folder: Path, info: EmbedderInfo) -> str:
    """Return the hex SHA-256 over what decides an embedder's vectors.

    The hashes of the files are taken from the manifest where there is one, else the files are read.

    Raises:
        StoreError: A file is missing.
    """
    manifest = read_manifest(folder)
    digest = hashlib.sha256()
    for name in _VECTOR_SPACE_FILES:
        known = manifest.files.get(name) if manifest else None
        path = folder / name
        if known is None and not path.is_file():
            raise StoreError(f"{folder} has no {name}")
        digest.update(f"{name} {known or hash_file(path)}\n".encode())
    digest.update(f"{info.dim} {info.window_tokens} {info.pooling}\n".encode())
    return digest.hexdigest()


def _read_json(path: Path) -> dict[str, object] | None:
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise StoreError(f"{path} is not a JSON object")
    return values
