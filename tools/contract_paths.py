"""Where the contract and what is made from it live, and how its tools are started."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "tools" / "codegen.toml"
PROTO_DIR = ROOT / "proto"
CLIENT_PROTOS = ROOT / "clients" / "proto"
PYTHON_TREE = ROOT / "clients" / "python" / "src" / "clag"
RULES_SET = ROOT / "clag_server" / "contract" / "clag.v1.binpb"
REFERENCE = ROOT / "docs" / "contract.md"
RELEASED_IMAGE = PROTO_DIR / "clag.v1.released.binpb"


def pins() -> dict[str, Any]:
    """Return the pinned versions and hashes of `tools/codegen.toml`."""
    return tomllib.loads(PINS.read_text(encoding="utf-8"))


def tool(name: str) -> str:
    """Return the path of a command of this environment.

    Raises:
        SystemExit: if it is not installed.
    """
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise SystemExit(f"{name} is not installed; install the development dependencies")
    return found


def buf(*args: str) -> None:
    """Run buf in the repository root.

    Raises:
        SystemExit: if buf reports findings or fails.
    """
    done = subprocess.run([tool("buf"), *args], cwd=ROOT, check=False)
    if done.returncode != 0:
        raise SystemExit(f"buf {args[0]} failed")
