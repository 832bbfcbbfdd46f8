"""Attention of a pass whose rows read different numbers of tokens, without padding. Runs in the worker only.

All linear layers see the tokens of such a pass as one line, so that a row that reads seven tokens beside rows that
read one costs six tokens more and not seven times as many. Only attention must tell rows apart: the last tokens of
all rows attend together, as in a pass of one token a row, and the tokens before a row's last attend for themselves.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ROWS_ATTENTION", "Before", "Split", "attending"]

ROWS_ATTENTION = "sdpa_rows"
"""The name under which transformers knows this attention; the same as its own where a pass is not split."""


@dataclass(frozen=True, slots=True)
class Before:
    """The tokens that a row reads before its last one."""

    row: int
    """Which row of the pass."""
    first: int
    """Where they are in the line of tokens."""
    count: int
    mask: torch.Tensor
    """Who sees whom, shape (1, 1, count, positions)."""


@dataclass(frozen=True, slots=True)
class Split:
    """How the line of tokens belongs to rows: the last token of each row, then what some rows read before it."""

    rows: int
    before: tuple[Before, ...]


_split: ContextVar[Split | None] = ContextVar("split", default=None)
"""Of the pass that runs. Between its layers another pass may run, which is split in another way or not at all."""


@contextmanager
def attending(split: Split | None) -> Iterator[None]:
    """Run a pass that is split in this way; None for one of equal rows."""
    token = _split.set(split)
    try:
        yield
    finally:
        _split.reset(token)


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Return what attention gives, shape (rows, tokens, heads, width); of a split pass (1, tokens, heads, width).

    Args:
        module: The layer.
        query: Shape (rows, heads, tokens, width); of a split pass (1, heads, tokens, width).
        key: Keys of the rows, shape (rows, heads, positions, width).
        value: Likewise.
        attention_mask: Who sees whom; of a split pass for the last tokens, shape (rows, 1, 1, positions).
        options: What the library's function takes besides.
    """
    split = _split.get()
    if split is None:
        found, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return found, None
    lasts = query[0, :, : split.rows].transpose(0, 1).unsqueeze(2)
    found, _ = sdpa_attention_forward(module, lasts, key, value, attention_mask, **options)
    parts = [found.transpose(0, 1)]
    for one in split.before:
        row, positions = slice(one.row, one.row + 1), one.mask.shape[3]
        found, _ = sdpa_attention_forward(
            module,
            query[:, :, one.first : one.first + one.count],
            key[row, :, :positions],
            value[row, :, :positions],
            one.mask,
            **options,
        )
        parts.append(found)
    return torch.cat(parts, dim=1), None


AttentionInterface.register(ROWS_ATTENTION, _attend)
AttentionMaskInterface.register(ROWS_ATTENTION, sdpa_mask)
