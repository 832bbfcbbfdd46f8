"""What the models are and how they run; filled from the settings by the composition root."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Backend", "EngineLimits", "ModelsConfig"]


class Backend(enum.Enum):
    """What answers model calls."""

    WORKER = "worker"
    """Real models in a supervised process."""
    SCRIPTED = "scripted"
    """The scripted double of the product's tests, driven by a JSON file."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Bounds that keep one call from hurting the others. Zero means: chosen by the device."""

    embed_tokens: int = 256
    """Window of the embedder in word pieces; longer texts count by their beginning."""
    embed_batch_tokens: int = 0
    """Padded tokens of one embedding forward pass (CPU 1,024, accelerator 32,768): bounds how long an
    interactive query waits behind a bulk batch."""
    choose_text_tokens: int = 256
    """Tokens of a text that are scored; the rest is clipped."""
    choose_head_tokens: int = 512
    """Tokens of a head that are read; the rest is clipped."""
    choose_batch_tokens: int = 0
    """Padded tokens of one scoring forward pass (CPU 1,024, accelerator 16,384)."""
    prefix_cache_mib: int = 256
    """Memory for cached heads."""
    context_tokens: int = 2048
    """Prompt and answer of one generation together."""
    prefill_tokens: int = 0
    """Tokens of a prompt that are read between two decode steps (CPU 256, accelerator 2,048)."""
    slots: int = 0
    """Generations that run at the same time (CPU 16, accelerator 64)."""


@dataclass(frozen=True, slots=True)
class ModelsConfig:
    """The models of one server."""

    cache: Path
    """The model cache folder, `~/.cache/clag/models` by default of the settings."""
    backend: Backend = Backend.WORKER
    embedder: str = "all-minilm-l6-v2"
    """Name of a known model, hub name (`organisation/model`) or folder."""
    slm: str | None = "smollm2-135m-instruct"
    """The same for the language model, or a `.gguf` file; None runs without one."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda`, `cuda:1`, `mps`."""
    dtype: str = "auto"
    """Of the language model: `auto`, `float32`, `bfloat16`, `float16`. The embedder is always float32."""
    threads: int = 0
    """Threads of the worker's computations; 0 takes all cores."""
    hang_timeout_s: float = 60.0
    """A worker that has work and is silent for this long is killed and started again."""
    load_timeout_s: float = 600.0
    """A worker whose first model is not loaded after this time is killed and started again."""
    limits: EngineLimits = EngineLimits()
    script: Path | None = None
    """The JSON file of the scripted backend."""
