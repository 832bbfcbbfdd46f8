"""The channel score: how likely is a text, given each candidate's head? Runs in the worker only.

score(option) = sum over the text's tokens of log P(token | head, earlier tokens), the text following the head
after one space (DESIGN section 7). A head is read once and kept as keys and values; a call then costs its text's
tokens times its options. Several calls share a forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from clag_server.models.torch_cache import RowCache, causal_mask
from clag_server.models.torch_faults import RowLimit
from clag_server.models.torch_heads import Head, HeadCache

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from clag_server.models.torch_slm import CausalModel

__all__ = ["ChannelScorer", "ScoredCall"]

_MANY = 1 << 20
"""Rows of a pass before memory was ever short: the token budget bounds them."""


@dataclass(frozen=True, slots=True)
class ScoredCall:
    """One call's answer."""

    scores: list[float]
    clipped: bool
    tokens_in: int


@dataclass(frozen=True, slots=True)
class _Row:
    """One (text, option) pair of a batch."""

    call: int
    option: int
    head: Head
    text: list[int]


class ChannelScorer:
    """Scores calls with cached heads.

    Args:
        model: The language model.
        text_tokens: Tokens of a text that are scored.
        head_tokens: Tokens of a head that are read.
        batch_tokens: Padded tokens of one forward pass.
        cache_bytes: Memory for cached heads.
    """

    def __init__(
        self, model: CausalModel, *, text_tokens: int, head_tokens: int, batch_tokens: int, cache_bytes: int
    ) -> None:
        self._model = model
        self._text_tokens = text_tokens
        self._head_tokens = min(head_tokens, model.max_positions - text_tokens)
        self._batch_tokens = batch_tokens
        self._cache = HeadCache(cache_bytes)
        self._limit = RowLimit(_MANY)

    @property
    def hits(self) -> int:
        """Heads that were cached when a call named them."""
        return self._cache.hits

    @property
    def misses(self) -> int:
        """Heads that had to be read."""
        return self._cache.misses

    @property
    def cache_bytes(self) -> int:
        """Bytes of the cached heads."""
        return self._cache.nbytes

    def score(
        self, texts: Sequence[str], options: Sequence[Sequence[tuple[str, str]]]
    ) -> Generator[None, None, list[ScoredCall]]:
        """Score calls; yields between forward passes, so that more urgent work can go first.

        Args:
            texts: One text a call.
            options: (key, head) pairs of each call.
        """
        encoded = self._model.tokenizer.encode([f" {text}" for text in texts])
        heads, read = yield from self._heads([pair for call in options for pair in call])
        rows = [
            _Row(c, o, heads[head], encoded[c][: self._text_tokens])
            for c, call in enumerate(options)
            for o, (_, head) in enumerate(call)
        ]
        scores = [[0.0] * len(call) for call in options]
        for batch in self._batches(rows):
            self._limit.run(0, len(batch), partial(self._fill, scores, batch), _give_up)
            yield
        answers = []
        for c, call in enumerate(options):
            length = len(encoded[c])
            clipped = length > self._text_tokens or any(heads[head].clipped for _, head in call)
            # A head that several calls share is counted where it is named first.
            fresh = sum(read.pop(head, 0) for _, head in call)
            answers.append(ScoredCall(scores[c], clipped, fresh + min(length, self._text_tokens) * len(call)))
        return answers

    def _batches(self, rows: list[_Row]) -> Iterable[list[_Row]]:
        """Yield rows of similar length, the padded size of each batch within the budget."""
        batch: list[_Row] = []
        for row in sorted(rows, key=lambda one: (len(one.text), one.head.tokens)):
            # Cached positions cost memory traffic only, about a tenth of a token that is computed.
            cost = len(row.text) + row.head.tokens // 10
            if batch and (len(batch) + 1) * cost > self._batch_tokens:
                yield batch
                batch = []
            batch.append(row)
        if batch:
            yield batch

    def _fill(self, scores: list[list[float]], rows: list[_Row], first: int, count: int) -> None:
        batch = rows[first : first + count]
        for row, score in zip(batch, self._score_batch(batch), strict=True):
            scores[row.call][row.option] = score

    @torch.inference_mode()
    def _score_batch(self, batch: list[_Row]) -> list[float]:
        device = self._model.device
        past = max(row.head.tokens for row in batch)
        new = max(len(row.text) for row in batch)
        store = self._model.shape.empty(len(batch), past + new)
        for i, row in enumerate(batch):
            store[:, :, i, :, : row.head.tokens] = row.head.store
        ids, lengths = _padded([row.text for row in batch])
        ids, lengths = ids.to(device), lengths.to(device)
        head_lengths = torch.tensor([row.head.tokens for row in batch], device=device)
        # Shape (rows, 1, new, past + new): the head's own positions, then the text up to the token itself.
        columns = torch.arange(past, device=device)
        sees_head = (columns[None] < head_lengths[:, None])[:, None, None].expand(-1, 1, new, -1)
        sees_text = causal_mask(0, new, device).expand(len(batch), 1, -1, -1)
        mask = torch.cat([sees_head, sees_text], dim=3)
        steps = torch.arange(new, device=device)
        hidden = self._model.hidden(ids, mask, head_lengths[:, None] + steps[None], RowCache(store, past))
        # The state before a token predicts it: shift by one, the head's last state comes first.
        first = torch.stack([row.head.last for row in batch])[:, None]
        before = torch.cat([first, hidden[:, :-1]], dim=1)
        real = steps[None] < lengths[:, None]
        sums = torch.zeros(len(batch), dtype=torch.float64)
        rows = real.nonzero()[:, 0].cpu()
        sums.index_add_(0, rows, self._model.log_probabilities(before[real], ids[real]).double().cpu())
        return [float(one) for one in sums]

    def _heads(self, pairs: list[tuple[str, str]]) -> Generator[None, None, tuple[dict[str, Head], dict[str, int]]]:
        """Return every head by its text, and the tokens read for those that were not cached."""
        found: dict[str, Head] = {}
        missing: dict[str, str] = {}
        for key, text in pairs:
            head = self._cache.get(text)
            if head is None:
                missing.setdefault(text, key)
            else:
                found[text] = head
        texts = sorted(missing, key=len)
        encoded = dict(zip(texts, self._model.tokenizer.encode(texts), strict=True))
        read = {}
        for batch in self._head_batches(texts, encoded):
            fresh: list[Head] = []
            ids = [encoded[text] for text in batch]
            self._limit.run(0, len(batch), partial(self._read_heads, fresh, ids), _give_up)
            for text, head in zip(batch, fresh, strict=True):
                found[text] = head
                read[text] = head.tokens
                self._cache.put(missing[text], text, head)
            yield
        return found, read

    def _head_batches(self, texts: list[str], encoded: dict[str, list[int]]) -> Iterable[list[str]]:
        batch: list[str] = []
        for text in texts:
            longest = max(min(len(encoded[t]), self._head_tokens) for t in [*batch, text])
            if batch and (len(batch) + 1) * longest > self._batch_tokens:
                yield batch
                batch = []
            batch.append(text)
        if batch:
            yield batch

    @torch.inference_mode()
    def _read_heads(self, fresh: list[Head], encoded: list[list[int]], first: int, count: int) -> None:
        device = self._model.device
        part = encoded[first : first + count]
        ids, lengths = _padded([one[: self._head_tokens] for one in part])
        rows, tokens = ids.shape
        store = self._model.shape.empty(rows, tokens)
        positions = torch.arange(tokens, device=device)[None]
        mask = causal_mask(0, tokens, device)
        hidden = self._model.hidden(ids.to(device), mask, positions, RowCache(store, 0))
        fresh.extend(
            # Clones, so that a cached head does not hold the whole batch in memory.
            Head(store[:, :, i, :, :n].clone(), hidden[i, n - 1].clone(), len(part[i]) > n)
            for i, n in enumerate(lengths.tolist())
        )


def _give_up(_: int, reason: str) -> None:
    """Fail the batch: the server asks again in halves and finds the call at fault."""
    raise RuntimeError(reason)


def _padded(rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids of shape (rows, longest), padded with 0 on the right, and the lengths."""
    lengths = torch.tensor([len(row) for row in rows])
    ids = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row, dtype=torch.long)
    return ids, lengths
