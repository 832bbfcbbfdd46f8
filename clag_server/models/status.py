"""How a model stands and what it has done: for health, `GetServerInfo`, metrics and error messages."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["EngineMetrics", "EngineState", "EngineStatus"]


class EngineState(enum.Enum):
    """Whether a model answers."""

    LOADING = "loading"
    """Its process starts or reads the weights; calls wait."""
    READY = "ready"
    DEGRADED = "degraded"
    """Its process ended or hangs and is started again; calls fail with `ModelUnavailableError`."""
    ABSENT = "absent"
    """There is no such model: none configured, or it cannot be loaded; calls fail."""


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """What a model did since the server started; times in seconds."""

    calls: int = 0
    """Calls that were answered."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Calls without a usable answer, by cause: `unavailable`, `timeout`, `refused`, `wrong_shape`, and
    `unusable_cut`, `unusable_not_json`, `unusable_wrong_fields`, `unusable_out_of_bounds`. Each is a fallback
    of its caller."""
    waiting: Mapping[str, int] = field(default_factory=dict)
    """Calls that wait for a batch now, by priority: `interactive`, `organize`, `bulk`."""
    wait_p50_s: float = 0.0
    """Median wait for a batch over the last 512 calls."""
    wait_p99_s: float = 0.0
    batch_mean: float = 0.0
    """Mean number of calls that shared a forward pass, over the last 512 calls."""
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_per_s: float = 0.0
    """Tokens read and written over the last minute."""
    prefix_hits: int = 0
    """Heads and prompt beginnings whose keys and values were kept from an earlier call."""
    prefix_misses: int = 0


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """One model's status, for health, `GetServerInfo` and error messages."""

    state: EngineState
    model: str
    reason: str = ""
    """Why the model is not READY; one sentence."""
    device: str = ""
    """`cpu`, `cuda:0`, `mps`; empty until loaded. Several workers: their devices, joined by commas."""
    dtype: str = ""
    """`float32`, `bfloat16`; empty until loaded."""
    loads: int = 0
    """How often the model was loaded since the server started."""
    restarts: int = 0
    """How often its process was started again."""
    queue_depth: int = 0
    """Texts or calls that wait for a batch."""
    load_s: float = 0.0
    """Seconds that the last load took, imports included."""
    metrics: EngineMetrics = field(default_factory=EngineMetrics)
