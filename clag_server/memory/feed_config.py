"""Bounds of watches and exports, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WatchConfig:
    """How the change log is kept and told.

    Attributes:
        checkpoint_s: A reader hears of the newest revision at least so often.
        changes_keep: Newest changes (of all namespaces) that are never forgotten.
        changes_keep_days: Changes younger than this are never forgotten.
    """

    checkpoint_s: float = 10.0
    changes_keep: int = 100_000
    changes_keep_days: float = 7.0


@dataclass(frozen=True, slots=True)
class ExportConfig:
    """Bounds of exports.

    Attributes:
        snapshot_keep_s: A snapshot that nobody reads from for so long is removed, and its cursors with it.
        snapshots_max: Snapshots at once; each is a copy of one namespace on disk.
    """

    snapshot_keep_s: float = 3600.0
    snapshots_max: int = 4
