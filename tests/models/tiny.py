"""A language model of random weights, small enough to be made in a test: two layers, one token a byte."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch

    from clag_server.models.torch_generate import Event, Generator
    from clag_server.models.torch_slm import CausalModel

END = "<|end|>"


def make_folder(folder: Path, seed: int = 7, merges: Sequence[tuple[str, str]] = ()) -> Path:
    """Write weights and tokenizer, which writes the pairs of `merges` as one token."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters += [first + second for first, second in merges]
    tokenizer = Tokenizer(models.BPE(vocab={one: i for i, one in enumerate(letters)}, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(letters) + 1,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        eos_token_id=len(letters),
        bos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    # Wide weights: with the usual ones every prompt is continued by the same byte.
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() > 1:
                weights.normal_(0.0, 0.4)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("tiny"))


def load(folder: Path) -> CausalModel:
    import torch

    from clag_server.models.torch_slm import CausalModel

    torch.set_num_threads(1)  # teams of threads that wait for each other take longer than these passes
    return CausalModel(folder, torch.device("cpu"), torch.float32)


class Passes:
    """Watches a model's forward passes, and can make them fail."""

    def __init__(self, model: CausalModel) -> None:
        self.shapes: list[tuple[int, int]] = []
        self.fault: Callable[[torch.Tensor], Exception | None] = lambda _: None
        self._hidden = model.hidden
        model.hidden = self._watched  # type: ignore[method-assign, assignment]

    def _watched(self, ids: torch.Tensor, *rest: object) -> torch.Tensor:
        error = self.fault(ids)
        if error is not None:
            raise error
        self.shapes.append((ids.shape[0], ids.shape[1]))
        return self._hidden(ids, *rest)  # type: ignore[arg-type]


def run(generator: Generator, steps: int = 10_000) -> list[Event]:
    """Step until nothing is left to do."""
    events: list[Event] = []
    while generator.busy:
        assert steps, "the generator does not come to an end"
        steps -= 1
        events += generator.step()
    return events
