"""Snapshots of namespaces as directories: what they are called, and when they were last used.

The name says all that must survive a restart: an id that cannot be guessed, the namespace's number, the revision.
The directory's time is that of its last use.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

_NAME: Final = re.compile(r"([0-9a-f]{32})-([0-9]{1,18})-([0-9]{1,19})")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One namespace (by number) as of one revision, in a catalog file of its own."""

    FILE: ClassVar[str] = "catalog.db"

    directory: Path
    snapshot_id: str
    ns: int
    revision: int

    @property
    def file(self) -> Path:
        """The catalog file."""
        return self.directory / self.FILE

    def touch(self) -> None:
        """Say that it is used now."""
        os.utime(self.directory)

    def idle_s(self) -> float:
        """Seconds since its last use; 0 when it is gone."""
        try:
            return max(0.0, time.time() - self.directory.stat().st_mtime)
        except FileNotFoundError:
            return 0.0


def name_of(snapshot_id: str, ns: int, revision: int) -> str:
    """Name of a snapshot's directory."""
    return f"{snapshot_id}-{ns}-{revision}"


def in_directory(directory: Path) -> list[Snapshot]:
    """All snapshots that are there, by name."""
    found = []
    for path in sorted(directory.iterdir()):
        match = _NAME.fullmatch(path.name)
        if match:
            found.append(Snapshot(path, match[1], int(match[2]), int(match[3])))
    return found
