"""Heads of choices as the model left them, kept for the next call. Runs in the worker only."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["Head", "HeadCache"]


@dataclass(frozen=True, slots=True)
class Head:
    """A head as the model left it."""

    store: torch.Tensor
    """Keys and values, shape (layers, 2, heads, tokens, width)."""
    last: torch.Tensor
    """Hidden state of the last token, shape (width,): it predicts the text's first token."""
    clipped: bool
    """Whether it was longer than the limit."""

    @property
    def tokens(self) -> int:
        """Length."""
        return int(self.store.shape[3])

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return self.store.nbytes + self.last.nbytes


class HeadCache:
    """Least recently used heads under a byte limit, found by what they say, not by who names them.

    Args:
        limit_bytes: Memory for keys and values; 0 keeps none.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._bytes = 0
        self._heads: OrderedDict[bytes, Head] = OrderedDict()
        self._newest: dict[str, bytes] = {}
        self.hits = 0
        self.misses = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the kept heads."""
        return self._bytes

    def get(self, text: str) -> Head | None:
        """Return a kept head."""
        digest = _digest(text)
        head = self._heads.get(digest)
        if head is not None:
            self._heads.move_to_end(digest)
        self.hits += head is not None
        self.misses += head is None
        return head

    def put(self, key: str, text: str, head: Head) -> None:
        """Keep a head; the one that had its key before is forgotten."""
        digest = _digest(text)
        old = self._newest.get(key)
        if old is not None and old != digest:
            self._drop(old)  # the cluster's profile changed: nobody asks for the old head again
        self._drop(digest)
        self._newest[key] = digest
        self._heads[digest] = head
        self._bytes += head.nbytes
        while self._bytes > self._limit:
            self._drop(next(iter(self._heads)))
        if len(self._newest) > 4 * len(self._heads) + 64:
            self._newest = {k: d for k, d in self._newest.items() if d in self._heads}

    def _drop(self, digest: bytes) -> None:
        head = self._heads.pop(digest, None)
        if head is not None:
            self._bytes -= head.nbytes


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
