"""Running `clag` as a user does: a process, its streams, its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-m", "clag_server")
TIMEOUT_S = 90.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    def document(self) -> Any:
        """Standard output as one JSON document."""
        return json.loads(self.out)

    def lines(self) -> list[dict[str, Any]]:
        """Standard output as JSON Lines."""
        return [json.loads(line) for line in self.out.splitlines()]

    def error(self) -> str:
        """The one line of error; no traceback."""
        (line,) = self.err.splitlines()
        return line


def environment(home: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment in which nothing of the developer's own settings counts."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("CLAG_", "XDG_"))}
    return {**kept, "HOME": str(home), "PYTHONUTF8": "1", "COLUMNS": "200", **(more or {})}


def clag(
    *arguments: str | Path, home: Path, stdin: str | bytes = b"", env: Mapping[str, str] | None = None
) -> Ended:
    """Run a command to its end."""
    given = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=given,
        capture_output=True,
        env=environment(home, env),
        timeout=TIMEOUT_S,
        check=False,
    )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())
