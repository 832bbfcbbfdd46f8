"""What a collection is known to hold: one small JSON file a namespace, beside the index, written atomically.

The file and the collection carry the same random stamp, so that a collection that was restored, copied or replaced
behind our back is noticed. The file is only a claim: on open it is checked against the catalog's digest and count,
reading the collection through checks the rest, and a missing or unreadable one means a rebuild.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["IndexRecord", "RecordFile", "recorded_namespaces"]

_FORMAT = 2
_FORMER_BUCKETS = 64
"""Of records that do not say."""


@dataclass(frozen=True, slots=True)
class IndexRecord:
    """State of one collection.

    `applied_seq`: the newest outbox op that is durable in it. `digest`: that of the placements the catalog had as
    of that op (`types.digest`). `clean` is False while it is rebuilt or in doubt.
    `shared`: clusters that live in shared partitions, of which there are `buckets`. `dropped`: the namespace is
    gone, the collection must go.
    """

    dim: int
    stamp: str
    applied_seq: int
    digest: int
    clean: bool
    shared: tuple[int, ...] = ()
    dropped: bool = False
    buckets: int = 0


class RecordFile:
    """Reads and writes the record of one namespace. All methods block: call them in an executor."""

    def __init__(self, folder: Path, ns: int) -> None:
        self._path = folder / f"ns_{ns:d}.json"

    def load(self) -> IndexRecord | None:
        """Return the record, or None where there is none that can be trusted."""
        try:
            body = json.loads(self._path.read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        if not isinstance(body, dict) or body.pop("format", None) != _FORMAT:
            return None
        try:
            return IndexRecord(
                dim=int(body["dim"]),
                stamp=str(body["stamp"]),
                applied_seq=int(body["applied_seq"]),
                digest=int(body["digest"]),
                clean=body["clean"] is True,
                shared=tuple(int(cluster) for cluster in body["shared"]),
                dropped=body["dropped"] is True,
                buckets=int(body.get("buckets", _FORMER_BUCKETS)),
            )
        except (KeyError, TypeError, ValueError):
            return None

    def save(self, record: IndexRecord) -> None:
        """Replace the record; it is on disk when this returns. Raises OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = self._path.with_suffix(".tmp")
        with temporary.open("w") as file:
            json.dump({"format": _FORMAT, **asdict(record)}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
        _sync_folder(self._path.parent)

    def remove(self) -> None:
        """Forget the namespace. Raises OSError."""
        self._path.unlink(missing_ok=True)
        if self._path.parent.exists():
            _sync_folder(self._path.parent)


def recorded_namespaces(folder: Path) -> list[int]:
    """Return the namespaces that have a record file, ascending."""
    stems = (path.stem.removeprefix("ns_") for path in folder.glob("ns_*.json"))
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
