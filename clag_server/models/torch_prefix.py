"""Beginnings that prompts share, read once: the static part of a role's prompt, a cluster's profile.

Runs in the worker only. Nobody has to say where the shared part ends: prompts are seen as blocks of tokens, and a
beginning that a second prompt repeats is kept as keys and values, least recently used out first.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["PrefixBook"]

_BLOCK = 8
"""Tokens; what is shared past the last whole block is read again."""

_LEAST = 16
"""Shorter beginnings (a chat template's first words) are not worth a copy."""

_SEEN = 32_768
"""Blocks whose number of prompts is remembered, some 4 MB."""


class PrefixBook:
    """Kept beginnings of prompts.

    Args:
        limit_bytes: Memory for their keys and values; 0 keeps none.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._bytes = 0
        self._kept: OrderedDict[bytes, torch.Tensor] = OrderedDict()
        self._seen: OrderedDict[bytes, int] = OrderedDict()
        self.hits = 0
        self.misses = 0

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept."""
        return self._bytes

    def chain(self, ids: list[int]) -> list[bytes]:
        """Hear of a prompt and return one digest for each of its beginnings of whole blocks.

        The last token is in none of them: the state after it is what the answer starts from.
        """
        if not self._limit:
            return []
        digest = b""
        chain = []
        for start in range(0, len(ids) - _BLOCK, _BLOCK):
            block = array("q", ids[start : start + _BLOCK]).tobytes()
            digest = hashlib.blake2b(digest + block, digest_size=16).digest()
            chain.append(digest)
            self._seen[digest] = self._seen.pop(digest, 0) + 1
        while len(self._seen) > _SEEN:
            self._seen.popitem(last=False)
        return chain

    def find(self, chain: list[bytes]) -> torch.Tensor | None:
        """Return the longest kept beginning, shape (layers, 2, heads, tokens, width)."""
        for digest in reversed(chain):
            kept = self._kept.get(digest)
            if kept is not None:
                self._kept.move_to_end(digest)
                return kept
        return None

    def worth_keeping(self, chain: list[bytes]) -> int:
        """Return the number of tokens of the longest beginning that other prompts share, 0 for none."""
        for blocks in range(len(chain), 0, -1):
            if self._seen.get(chain[blocks - 1], 0) > 1:
                tokens = blocks * _BLOCK
                return tokens if tokens >= _LEAST else 0
        return 0

    def keep(self, chain: list[bytes], kept: torch.Tensor) -> None:
        """Keep a beginning of a prompt: keys and values of as many tokens as `worth_keeping` said."""
        digest = chain[int(kept.shape[3]) // _BLOCK - 1]
        if digest in self._kept or kept.nbytes > self._limit:
            return
        self._kept[digest] = kept
        self._bytes += kept.nbytes
        while self._bytes > self._limit:
            _, old = self._kept.popitem(last=False)
            self._bytes -= old.nbytes

    def count(self, *, hit: bool) -> None:
        """Count a prompt that begins, or does not begin, with something kept."""
        self.hits += hit
        self.misses += not hit

    def clear(self) -> None:
        """Give the memory back."""
        self._kept.clear()
        self._bytes = 0
