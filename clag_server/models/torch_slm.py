"""A causal language model in the worker: weights, tokenizer, chat template, and one forward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from clag_server.models.tokens import PlainTokenizer
from clag_server.models.torch_attend import ROWS_ATTENTION, attending
from clag_server.models.torch_cache import KvShape
from clag_server.models.torch_layers import call_before_layers
from clag_server.models.torch_slab import Slab

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from clag_server.models.torch_cache import RowCache

__all__ = ["CausalModel"]

_PLACE_OF_PROMPT = "CLAGPROMPTCLAG"
"""Stands for the prompt while the chat template is rendered. Letters only, so that a template that trims or
escapes leaves it whole."""

_LOGIT_ROWS = 256
"""Rows of the vocabulary-wide matrix at a time: 256 x 49,152 x 4 bytes = 50 MB."""


class CausalModel:
    """A decoder whose attention layers accept an explicit cache, mask and positions.

    Args:
        folder: Model folder with weights, `config.json`, `tokenizer.json`.
        device: Where it runs.
        dtype: Number format of the weights.

    Raises:
        ValueError: The model has layers without keys and values (state-space, for example).
    """

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
        self.tokenizer = PlainTokenizer(folder)
        self.hub_tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, attn_implementation="sdpa"
        )
        model.set_attn_implementation(ROWS_ATTENTION)
        self._model = model.eval().to(device)
        config = self._model.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        if not kinds <= {"full_attention", "sliding_attention"}:
            raise ValueError(f"layers of kind {', '.join(sorted(kinds))} keep no keys and values")
        self.device = device
        self.shape = KvShape.of(config, dtype, device)
        self.vocabulary_size = int(config.vocab_size)
        self.max_positions = int(getattr(config, "max_position_embeddings", 2048))
        self.stop_ids = self._read_stop_ids()
        self._turn = self._read_chat_template()

    def prompt_ids(self, prompt: str) -> list[int]:
        """Return a prompt as the user's turn: the template's control tokens around plain text."""
        before, after = self._turn
        return [*before, *self.tokenizer.encode([prompt])[0], *after]

    def call_before_layers(self, call: Callable[[], None]) -> None:
        """Call `call` before each layer of every pass from now on."""
        call_before_layers(self._model.base_model, call)

    @torch.inference_mode()
    def hidden(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: RowCache | Slab
    ) -> torch.Tensor:
        """Return the last layer's output, shape (rows, tokens, width).

        Args:
            ids: Token ids, shape (rows, tokens); of a pass that a slab has split (1, tokens), likewise below.
            mask: True where a token sees a position, shape (rows or 1, 1, tokens, positions).
            positions: Position of each token, shape (rows or 1, tokens).
            cache: Where keys and values go.
        """
        with attending(cache.split if isinstance(cache, Slab) else None):
            output = self._model.base_model(
                input_ids=ids, attention_mask=mask, position_ids=positions, cache=cache, use_cache=True
            )
        return output[0]  # type: ignore[no-any-return]

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 logits, shape (rows, vocabulary), of hidden states of shape (rows, width)."""
        raw: torch.Tensor = self._model.get_output_embeddings()(hidden)
        return raw.float()

    @torch.inference_mode()
    def log_probabilities(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return log P(target) in nats of each row, shape (rows,).

        Args:
            hidden: Hidden states before the targets, shape (rows, width).
            targets: Token ids, shape (rows,).
        """
        pieces = []
        for start in range(0, len(targets), _LOGIT_ROWS):
            part = self.logits(hidden[start : start + _LOGIT_ROWS])
            aimed = part.gather(1, targets[start : start + _LOGIT_ROWS, None])[:, 0]
            pieces.append(aimed - part.logsumexp(1))
        return torch.cat(pieces)

    def _read_stop_ids(self) -> frozenset[int]:
        found: set[int] = set()
        generation = getattr(self._model, "generation_config", None)
        for source in (generation, self._model.config, self.hub_tokenizer):
            ids: int | Sequence[int] | None = getattr(source, "eos_token_id", None)
            if isinstance(ids, int):
                found.add(ids)
            elif ids:
                found.update(int(one) for one in ids)
        return frozenset(found)

    def _read_chat_template(self) -> tuple[list[int], list[int]]:
        """Return the token ids before and after a user's text; both empty without a template.

        The template is rendered around a placeholder and cut there, so the user's text never passes through a
        tokenizer that knows control tokens.
        """
        if not self.hub_tokenizer.chat_template:
            return [], []
        turn = [{"role": "user", "content": _PLACE_OF_PROMPT}]
        rendered: str = self.hub_tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        before, found, after = rendered.partition(_PLACE_OF_PROMPT)
        if not found:
            return [], []
        return self._template_ids(before), self._template_ids(after)

    def _template_ids(self, piece: str) -> list[int]:
        ids: list[int] = self.hub_tokenizer.encode(piece, add_special_tokens=False)
        return ids
