"""What numbers settings may have: bounds of single ones, and by the ends of their names those of all others."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Final

from clag_server.memory.config import IngestConfig, OrganizeConfig, RetrieveConfig

_BOUNDS: Final = (
    ("candidates", 1, 15),
    ("vote_batch", 1, 256),
    ("cold_clusters", 1, 64),
    ("slm_neighbours", 0, 8),
    ("max_links", 0, 32),
    ("evolve_batch", 0, 4096),
)
"""Of `organize`: name, least, most."""

_MOST: Final = (
    ("_cosine", 1.0),
    (".share", 1.0),
    (".dense_weight", 1.0),
    (".gap", 1.0),
    ("_contradictions", 1.0),
    ("answer_relevance", 1.0),
    ("_days", 36_525.0),
    ("_s", 36_525.0 * 86_400.0),
)
"""Largest value of settings by the end of their names: cosines, shares, days, seconds (a hundred years)."""

_PAUSES: Final = ("reorganize_check_s", "archive_check_s")
"""Of `organize`: how long to wait before the next look."""


def check_ranges(ingest: IngestConfig, organize: OrganizeConfig, retrieve: RetrieveConfig) -> None:
    """Raise ValueError, with the setting's name and what it may be, for one that is out of its range."""
    for key, least, most in _BOUNDS:
        number = getattr(organize, key)
        if not least <= number <= most:
            raise ValueError(f"organize.{key} is {number}; it must be {least} to {most}")
    for section, config in (("ingest", ingest), ("organize", organize), ("retrieve", retrieve)):
        for key, value in asdict(config).items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                _check_number(f"{section}.{key}", value)
    if retrieve.half_life_days == 0:
        raise ValueError("retrieve.half_life_days is 0; it must be more")
    for pause in _PAUSES:
        if getattr(organize, pause) <= 0:
            raise ValueError(f"organize.{pause} must be above 0: it is how long to wait before the next look")
    if ingest.window_items < ingest.max_batch_items:
        raise ValueError(
            f"ingest.window_items ({ingest.window_items}) must be at least ingest.max_batch_items "
            f"({ingest.max_batch_items}), or a full frame could never be sent"
        )


def _check_number(key: str, value: float) -> None:
    if not math.isfinite(value):
        raise ValueError(f"{key} is {value}; it must be a finite number")
    if value < 0:
        raise ValueError(f"{key} is {value}; it must not be negative")
    most = next((most for end, most in _MOST if key.endswith(end)), math.inf)
    if value > most:
        raise ValueError(f"{key} is {value}; it must be 0 to {most:,}")
