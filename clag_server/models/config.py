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
    """Window of the embedder in word pieces; longer texts are read in several."""
    embed_windows: int = 32
    """Windows of one text, enough for the longest memory; the rest of a longer one is left out."""
    embed_batch_tokens: int = 0
    """Padded tokens of one embedding forward pass (CPU 1,024, accelerator 32,768): bounds how long an
    interactive query waits behind a bulk batch."""
    choose_text_tokens: int = 256
    """Tokens of a text that are scored; the rest is clipped."""
    choose_head_tokens: int = 512
    """Tokens of a head that are read; the rest is clipped."""
    choose_batch_tokens: int = 0
    """Padded tokens of one scoring forward pass (CPU 512, accelerator 16,384)."""
    prefix_cache_mib: int = 256
    """Memory for cached heads of choices, and a quarter more for beginnings that prompts share."""
    context_tokens: int = 2048
    """Prompt and answer of one generation together."""
    prefill_tokens: int = 0
    """Tokens of a prompt that are read between two decode steps (CPU 256, accelerator 2,048)."""
    slots: int = 0
    """Generations that run at the same time; 64. On two cores they gave 1.19 times as much as 32."""


@dataclass(frozen=True, slots=True)
class ModelsConfig:
    """The models of one server."""

    cache: Path
    """The model cache folder, `~/.cache/clag/models` by default of the settings."""
    backend: Backend = Backend.WORKER
    embedder: str = "all-minilm-l6-v2"
    """Name of a known model, hub name (`organisation/model`) or folder."""
    slm: str | None = "smollm2-135m-instruct"
    """The same for the language model, or a `.gguf` file; None runs without one. With `slm_url`, its name there."""
    slm_url: str = ""
    """Base address of an OpenAI-compatible server that runs the language model; empty runs it in the worker."""
    slm_api_key_file: Path | None = None
    """File with the key that the server asks for."""
    slm_concurrency: int = 16
    """Requests to that server in flight at once."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda`, `cuda:1`, `mps`."""
    dtype: str = "auto"
    """Of the language model: `auto`, `float32`, `bfloat16`, `float16`. The embedder is always float32."""
    workers: int = 0
    """Worker processes; 0 runs one for each device."""
    devices: tuple[str, ...] = ()
    """Devices that the workers take in turn; none means `device`."""
    memory_limit_mib: int = 0
    """Resident memory at which a worker is replaced; 0 sets no limit."""
    threads: int = 0
    """Threads of a worker's computations; 0 shares the cores out among the workers."""
    hang_timeout_s: float = 60.0
    """A worker that has work and is silent for this long is killed and started again."""
    load_timeout_s: float = 600.0
    """A worker whose first model is not loaded after this time is killed and started again."""
    limits: EngineLimits = EngineLimits()
    script: Path | None = None
    """The JSON file of the scripted backend."""
