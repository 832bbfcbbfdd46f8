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

__all__ = ["KvShape", "RowCache", "SlotCache", "causal_mask"]

_FIRST_TOKENS = 256


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


class SlotCache:
    """A slab of rows that live as long as their generation. Active rows are 0..n-1.

    The slab starts with `_FIRST_TOKENS` positions a row and doubles when a row needs more: 16 rows of 2,048
    positions are 0.8 GB for a 135M model, and most prompts are short.

    Args:
        shape: The model's shape.
        slots: Number of rows.
        tokens: Most positions that a row can have.
    """

    is_compileable = False

    def __init__(self, shape: KvShape, slots: int, tokens: int) -> None:
        self._shape, self._slots, self._limit = shape, slots, tokens
        self._store = shape.empty(slots, min(_FIRST_TOKENS, tokens))
        self._prefill: tuple[int, int] | None = None
        self._positions = torch.zeros(0, dtype=torch.long)
        self._rows = torch.zeros(0, dtype=torch.long)
        self._longest = 0

    def plan_prefill(self, row: int, past: int, new: int) -> None:
        """The next pass reads `new` tokens of one row's prompt, after `past` tokens."""
        self._make_room(past + new)
        self._prefill = (row, past)

    def plan_decode(self, positions: torch.Tensor, longest: int) -> None:
        """The next pass reads one token of each active row.

        Args:
            positions: Where each row's token goes, shape (active rows,).
            longest: The largest position plus one.
        """
        self._make_room(longest)
        self._prefill = None
        self._positions, self._longest = positions, longest
        self._rows = torch.arange(len(positions), device=positions.device)

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the pass's keys and values where the plan says; return what attention reads."""
        stored_keys, stored_values = self._store[layer_idx, 0], self._store[layer_idx, 1]
        if self._prefill is not None:
            row, past = self._prefill
            end = past + keys.shape[2]
            stored_keys[row, :, past:end] = keys[0]
            stored_values[row, :, past:end] = values[0]
            return stored_keys[row : row + 1, :, :end], stored_values[row : row + 1, :, :end]
        stored_keys[self._rows, :, self._positions] = keys[:, :, 0]
        stored_values[self._rows, :, self._positions] = values[:, :, 0]
        count = len(self._rows)
        return stored_keys[:count, :, : self._longest], stored_values[:count, :, : self._longest]

    def get_seq_length(self, *_: Any) -> int:
        """Return 0: positions and masks are always given explicitly."""
        return 0

    def move(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` positions of one row to another."""
        self._store[:, :, target, :, :tokens] = self._store[:, :, source, :, :tokens]

    def _make_room(self, tokens: int) -> None:
        has = int(self._store.shape[4])
        if tokens <= has:
            return
        wider = self._shape.empty(self._slots, min(max(2 * has, tokens), self._limit))
        wider[:, :, :, :, :has] = self._store
        self._store = wider


def causal_mask(past: int, new: int, device: torch.device) -> torch.Tensor:
    """Return who sees whom, shape (1, 1, new, past + new): token i sees everything up to itself."""
    rows = torch.arange(new, device=device)[:, None]
    columns = torch.arange(past + new, device=device)[None]
    return (columns <= rows + past)[None, None]
