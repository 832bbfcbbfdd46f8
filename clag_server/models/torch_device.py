"""Which device and number format a model runs in. Runs in the worker only."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import torch

__all__ = ["DeviceChoice", "choose_device", "choose_dtype", "is_out_of_memory", "release_memory"]

_BF16_GAIN = 1.3
"""bfloat16 must win by this factor: below it, its rounding is not worth it. A machine with AMX shows 5x and
one without emulates it at under 1x, so the choice does not flicker between two starts."""


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """A device and the sizes that suit it."""

    device: torch.device
    embed_batch_tokens: int
    choose_batch_tokens: int
    prefill_tokens: int
    slots: int


def choose_device(name: str) -> DeviceChoice:
    """Return the device for a setting: `auto` takes CUDA, then MPS, then the CPU.

    Raises:
        RuntimeError: The named device does not exist here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    device = torch.device(name)
    torch.zeros(1, device=device)  # fails here, with torch's own words, rather than in the first request
    if device.type == "cpu":
        # Heads that share keys and values: without this transformers copies those for every head under a mask.
        # Passes of SmolLM2-135M took 85% (24 rows of 640 tokens), 95% (one of 160 new) and 90% (12 of 30 new).
        os.environ.setdefault("TRANSFORMERS_SDPA_FORCE_GQA", "1")
        return DeviceChoice(device, 1024, 512, 256, 64)
    return DeviceChoice(device, 32768, 16384, 2048, 64)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the number format of the language model: bfloat16 where it is faster, else float32.

    Raises:
        ValueError: Not a name of a supported format.
    """
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name != "auto":
        if name not in known:
            raise ValueError(f"dtype {name!r}: use auto, {', '.join(known)}")
        return known[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    if device.type == "mps":
        return torch.float16
    gain = _matmul_s(torch.float32) / _matmul_s(torch.bfloat16)
    return torch.bfloat16 if gain >= _BF16_GAIN else torch.float32


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception says that memory ran out (CPU allocators raise a plain RuntimeError)."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "memory" in str(error)


def release_memory() -> None:
    """Give cached blocks of accelerators back after an allocation failed."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()


def _matmul_s(dtype: torch.dtype) -> float:
    """Return the best of three times of a product in the shape of a small model's layer, in seconds."""
    left, right = torch.ones(256, 576, dtype=dtype), torch.ones(576, 1536, dtype=dtype)
    torch.mm(left, right)  # first call: kernels are chosen
    times = []
    for _ in range(3):
        start = time.perf_counter()
        torch.mm(left, right)
        times.append(time.perf_counter() - start)
    return max(min(times), 1e-9)
