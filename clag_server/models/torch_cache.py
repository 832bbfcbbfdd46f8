"""Key-value caches that are written in place. Runs in the worker only.

transformers grows its own cache by concatenation, which was 58% of a decode step at batch 32 (DESIGN section 7).
These hand its attention layers views of memory that was taken once. A model's layers only call `update`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import PretrainedConfig

__all__ = ["KvShape", "RowCache", "causal_mask"]


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one token of a model leaves behind: `layers` times a key and a value of (heads, width)."""

    layers: int
    heads: int
    width: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, config: PretrainedConfig, dtype: torch.dtype, device: torch.device) -> KvShape:
        """Read the shape from a decoder's configuration."""
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        return cls(int(config.num_hidden_layers), int(heads), int(width), dtype, device)

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes in the cache."""
        return 2 * self.layers * self.heads * self.width * self.dtype.itemsize

    def empty(self, rows: int, tokens: int) -> torch.Tensor:
        """Return zeros of shape (layers, 2, rows, heads, tokens, width).

        Zeros, because attention multiplies masked values by 0 and what was in the memory may be NaN.
        """
        return torch.zeros(
            self.layers, 2, rows, self.heads, tokens, self.width, dtype=self.dtype, device=self.device
        )


class RowCache:
    """A cache for one forward pass: `past` positions that are filled, then as many as the pass has tokens.

    Args:
        store: Tensor of shape (layers, 2, rows, heads, past + new, width).
        past: Number of filled positions.
    """

    is_compileable = False

    def __init__(self, store: torch.Tensor, past: int) -> None:
        self.store = store
        self._past = past

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the pass's keys and values, shape (rows, heads, new, width); return all of the layer's."""
        end = self._past + keys.shape[2]
        self.store[layer_idx, 0, :, :, self._past : end] = keys
        self.store[layer_idx, 1, :, :, self._past : end] = values
        return self.store[layer_idx, 0, :, :, :end], self.store[layer_idx, 1, :, :, :end]

    def get_seq_length(self, *_: Any) -> int:
        """Return 0: positions and masks are always given explicitly."""
        return 0


def causal_mask(past: int, new: int, device: torch.device) -> torch.Tensor:
    """Return who sees whom, shape (1, 1, new, past + new): token i sees everything up to itself."""
    rows = torch.arange(new, device=device)[:, None]
    columns = torch.arange(past + new, device=device)[None]
    return (columns <= rows + past)[None, None]
