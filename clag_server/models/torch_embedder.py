"""The embedder's computation: pooling over a BERT-like encoder, rows of length 1. Runs in the worker only.

A text longer than the encoder's window is read in windows that follow each other; its vector is their mean,
weighted by their tokens, the first window twice (it names speaker, date and subject), then brought to length 1. A
text that fits one window has the vector that the encoder gives it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from transformers import AutoModel

from clag_server.models.folder import read_embedder_info
from clag_server.models.tokens import PlainTokenizer
from clag_server.models.torch_faults import RowLimit
from clag_server.models.torch_layers import call_before_layers

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["FIRST_WINDOW_WEIGHT", "TorchEmbedder"]

FIRST_WINDOW_WEIGHT = 2.0
"""How much more a token of a long text's first window counts."""

_MANY = 1 << 20


class TorchEmbedder:
    """A sentence encoder in float32.

    Args:
        folder: Model folder: `config.json`, `model.safetensors`, `tokenizer.json`.
        device: Where it runs.
        window_tokens: Tokens that it reads at once, frame included.
        windows: Windows of one text; the rest of a longer one is left out.
        batch_tokens: Padded tokens of one forward pass.
    """

    def __init__(
        self, folder: Path, device: torch.device, *, window_tokens: int, windows: int, batch_tokens: int
    ) -> None:
        self._tokenizer = PlainTokenizer(folder)
        self._model = AutoModel.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
        self._model.eval().to(device)
        self._device = device
        info = read_embedder_info(folder, window_tokens)
        self._window = info.window_tokens
        self._pooling = info.pooling
        self._batch_tokens = max(batch_tokens, self._window)
        self._windows = windows
        self._before, self._after = self._frame()
        self._limit = RowLimit(_MANY)
        self.dim = info.dim

    def call_before_layers(self, call: Callable[[], None]) -> None:
        """Call `call` before each layer of every pass from now on."""
        call_before_layers(self._model, call)

    def embed(self, texts: Sequence[str]) -> Generator[None, None, tuple[NDArray[np.float32], int]]:
        """Embed texts; yields between forward passes, so that more urgent work can go first.

        Args:
            texts: At least one text.

        Returns:
            The vectors, shape (len(texts), dim), and the number of tokens read.
        """
        rows: list[list[int]] = []
        counts = []
        for ids in self._tokenizer.encode(texts, frame=True):
            windows = self._cut(ids)
            rows += windows
            counts.append(len(windows))
        vectors = np.empty((len(rows), self.dim), dtype=np.float32)
        for picked in self._batches(rows):
            self._limit.run(0, len(picked), partial(self._fill, vectors, rows, picked), _give_up)
            yield
        tokens = [len(row) for row in rows]
        return _pooled(vectors, tokens, counts), sum(tokens)

    def _fill(
        self, vectors: NDArray[np.float32], rows: list[list[int]], picked: list[int], first: int, count: int
    ) -> None:
        part = picked[first : first + count]
        vectors[part] = self._forward([rows[i] for i in part])

    def _frame(self) -> tuple[list[int], list[int]]:
        """Return the tokens that the model expects before and after a text."""
        framed, plain = self._tokenizer.encode(["a"], frame=True)[0], self._tokenizer.encode(["a"])[0]
        for at in range(len(framed) - len(plain) + 1):
            if framed[at : at + len(plain)] == plain:
                return framed[:at], framed[at + len(plain) :]
        return framed[:1], framed[-1:]

    def _cut(self, ids: list[int]) -> list[list[int]]:
        """Return a framed text as windows, each with its own frame."""
        if len(ids) <= self._window:
            return [ids]
        body = ids[len(self._before) : len(ids) - len(self._after)]
        size = self._window - len(self._before) - len(self._after)
        starts = range(0, min(len(body), size * self._windows), size)
        return [[*self._before, *body[start : start + size], *self._after] for start in starts]

    def _batches(self, rows: list[list[int]]) -> list[list[int]]:
        """Return row numbers in batches of similar length, the padded size of each within the budget."""
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        batches: list[list[int]] = [[]]
        for i in order:
            if batches[-1] and (len(batches[-1]) + 1) * len(rows[i]) > self._batch_tokens:
                batches.append([])
            batches[-1].append(i)
        return batches

    @torch.inference_mode()
    def _forward(self, rows: list[list[int]]) -> NDArray[np.float32]:
        lengths = torch.tensor([len(row) for row in rows])
        ids = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
        mask = torch.arange(ids.shape[1])[None] < lengths[:, None]
        ids, mask = ids.to(self._device), mask.to(self._device)
        hidden = self._model(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        if self._pooling == "cls":
            pooled = hidden[:, 0]
        else:
            weights = mask[..., None].to(hidden.dtype)
            pooled = (hidden * weights).sum(1) / weights.sum(1)
        unit: NDArray[np.float32] = torch.nn.functional.normalize(pooled, dim=1).cpu().numpy()
        return unit


def _pooled(vectors: NDArray[np.float32], tokens: list[int], counts: list[int]) -> NDArray[np.float32]:
    """Return one row a text from one row a window."""
    if len(vectors) == len(counts):
        return vectors  # every text fits its window: nothing may touch the vectors
    pooled = np.empty((len(counts), vectors.shape[1]), dtype=np.float32)
    at = 0
    for i, count in enumerate(counts):
        if count == 1:
            pooled[i] = vectors[at]
        else:
            weights = np.array(tokens[at : at + count], dtype=np.float32)
            weights[0] *= FIRST_WINDOW_WEIGHT
            mean = weights @ vectors[at : at + count]
            pooled[i] = mean / np.linalg.norm(mean)
        at += count
    return pooled


def _give_up(_: int, reason: str) -> None:
    """Fail the batch: the server asks again in halves and finds the text at fault."""
    raise RuntimeError(reason)
