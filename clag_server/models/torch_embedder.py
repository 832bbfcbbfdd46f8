"""The embedder's computation: pooling over a BERT-like encoder, rows of length 1. Runs in the worker only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from transformers import AutoModel

from clag_server.models.folder import read_embedder_info
from clag_server.models.tokens import PlainTokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["TorchEmbedder"]


class TorchEmbedder:
    """A sentence encoder in float32.

    Args:
        folder: Model folder: `config.json`, `model.safetensors`, `tokenizer.json`.
        device: Where it runs.
        window_tokens: Longest text in tokens, frame included; the rest of a longer one is left out.
        batch_tokens: Padded tokens of one forward pass.
    """

    def __init__(self, folder: Path, device: torch.device, window_tokens: int, batch_tokens: int) -> None:
        self._tokenizer = PlainTokenizer(folder)
        self._model = AutoModel.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
        self._model.eval().to(device)
        self._device = device
        info = read_embedder_info(folder, window_tokens)
        self._window = info.window_tokens
        self._pooling = info.pooling
        self._batch_tokens = max(batch_tokens, self._window)
        self.dim = info.dim

    @torch.inference_mode()
    def embed(self, texts: Sequence[str], beat: Callable[[], None]) -> tuple[NDArray[np.float32], int]:
        """Embed texts.

        Args:
            texts: At least one text.
            beat: Called between forward passes.

        Returns:
            The vectors, shape (len(texts), dim), and the number of tokens read.
        """
        rows = [self._clip(ids) for ids in self._tokenizer.encode(texts, frame=True)]
        vectors = np.empty((len(rows), self.dim), dtype=np.float32)
        for picked in self._batches(rows):
            vectors[picked] = self._forward([rows[i] for i in picked])
            beat()
        return vectors, sum(map(len, rows))

    def _clip(self, ids: list[int]) -> list[int]:
        # The last token is the frame's `[SEP]`, which the model expects at the end of a cut text too.
        return ids if len(ids) <= self._window else [*ids[: self._window - 1], ids[-1]]

    def _batches(self, rows: list[list[int]]) -> list[list[int]]:
        """Return row numbers in batches of similar length, the padded size of each within the budget."""
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        batches: list[list[int]] = [[]]
        for i in order:
            if batches[-1] and (len(batches[-1]) + 1) * len(rows[i]) > self._batch_tokens:
                batches.append([])
            batches[-1].append(i)
        return batches

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
