"""Take the schema of the validation rules from its pinned source distribution.

The file is needed to lint and to generate, never to run. It is not committed: this script fetches
the distribution from the package index by pip's own download command, checks both hashes and
unpacks one file into an ignored folder.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.contract_paths import ROOT, pins


def fetch() -> Path:
    """Make sure that the pinned schema is in place.

    Returns:
        Its path.

    Raises:
        SystemExit: if it cannot be fetched or a hash differs.
    """
    pin = pins()["validate"]
    target = ROOT / str(pin["target"])
    if target.exists() and _sha256(target.read_bytes()) == pin["member_sha256"]:
        return target
    with tempfile.TemporaryDirectory() as folder:
        archive = _download(pin, Path(folder))
        with tarfile.open(archive) as packed:
            name = f"{pin['distribution']}-{pin['version']}/{pin['member']}"
            member = packed.extractfile(name)
            if member is None:
                raise SystemExit(f"{archive.name} has no file {name}")
            content = member.read()
    if _sha256(content) != pin["member_sha256"]:
        raise SystemExit(f"{pin['member']} does not have the pinned hash")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    return target


def _download(pin: dict[str, str], folder: Path) -> Path:
    wanted = folder / "requirements.txt"
    line = f"{pin['distribution']}=={pin['version']} --hash=sha256:{pin['sdist_sha256']}\n"
    wanted.write_text(line, encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", pin["distribution"], "--require-hashes", "-r", str(wanted), "-d", str(folder)]
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit(f"could not download {pin['distribution']} {pin['version']} from the package index")
    archive = next(folder.glob("*.tar.gz"))
    if _sha256(archive.read_bytes()) != pin["sdist_sha256"]:
        raise SystemExit(f"{archive.name} does not have the pinned hash")
    return archive


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    print(fetch().relative_to(ROOT))
