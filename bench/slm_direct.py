"""The other sides of the ratios, in a process of their own: the released call pattern, and static batches.

`python -m bench.slm_direct FOLDER --calls N --tokens N --answer-tokens N [--continuous]` prints one JSON object;
with `--continuous` only what the library's continuous batching does.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.slm_work import annotation_prompts, notes, options, released_choice
from clag_server.models.torch_choose import ChannelScorer
from clag_server.models.torch_device import choose_device, choose_dtype
from clag_server.models.torch_slm import CausalModel

BATCH = 32


class Direct:
    """The library's own generation, without an engine."""

    def __init__(self, folder: Path, device: str) -> None:
        self.choice = choose_device(device)
        self.dtype = choose_dtype("auto", self.choice.device)
        self.folder = folder
        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=self.dtype).eval().to(self.choice.device)

    def ids(self, prompt: str) -> list[int]:
        turn = [{"role": "user", "content": prompt}]
        if self.tokenizer.chat_template:
            prompt = self.tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        found: list[int] = self.tokenizer.encode(prompt, add_special_tokens=False)
        return found

    @torch.inference_mode()
    def generate(self, rows: list[list[int]], tokens: int, *, least: int = 0) -> int:
        """Generate for rows of one length; return the tokens that were written."""
        ids = torch.tensor(rows, device=self.choice.device)
        out = self.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=least, do_sample=False,
            pad_token_id=0,
        )  # fmt: skip
        return int((out.shape[1] - ids.shape[1]) * len(rows))

    def one_at_a_time(self, texts: list[str], tokens: int) -> float:
        """Calls a second of the released pattern."""
        started = time.perf_counter()
        for text in texts:
            self.generate([self.ids(text)], tokens)
        return len(texts) / (time.perf_counter() - started)

    def static_batch(self, prompt: str, tokens: int) -> float:
        """Tokens written a second by one batch of equal lengths."""
        rows = [self.ids(prompt)] * BATCH
        started = time.perf_counter()
        written = self.generate(rows, tokens, least=tokens)
        return written / (time.perf_counter() - started)

    def static_choices(self, texts: list[str]) -> float:
        """Choices a second of equal texts in full batches, heads read before."""
        model = CausalModel(self.folder, self.choice.device, self.dtype)
        scorer = ChannelScorer(
            model, text_tokens=256, head_tokens=512, batch_tokens=self.choice.choose_batch_tokens,
            cache_bytes=1 << 28,
        )  # fmt: skip
        pairs = [(one.key, one.head) for one in options()]
        drain(scorer.score(texts[:1], [pairs]))
        started = time.perf_counter()
        drain(scorer.score([texts[0]] * len(texts), [pairs] * len(texts)))
        return len(texts) / (time.perf_counter() - started)

    def continuous(self, prompt: str, tokens: int) -> float:
        """Tokens written a second by the library's continuous batching."""
        from transformers import GenerationConfig

        config = GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
        rows = [self.ids(prompt)] * BATCH
        started = time.perf_counter()
        out: dict[str, Any] = self.model.generate_batch(inputs=rows, generation_config=config)
        written = sum(len(one.generated_tokens) for one in out.values())
        return written / (time.perf_counter() - started)


def drain(passes: Any) -> None:
    for _ in passes:
        continue


def best_of(times: int, run: Callable[[], float]) -> float:
    return max(run() for _ in range(times))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--calls", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--answer-tokens", type=int, default=300)
    parser.add_argument("--continuous", action="store_true")
    arguments = parser.parse_args()
    direct = Direct(arguments.folder, arguments.device)
    texts = notes(arguments.calls)
    prompt = annotation_prompts(texts)[0]
    direct.generate([direct.ids(prompt)], 2)
    if arguments.continuous:
        print(json.dumps({"continuous_tokens_per_s": direct.continuous(prompt, arguments.tokens)}))
        return
    found = {
        "released_choices_per_s": direct.one_at_a_time(list(map(released_choice, texts)), arguments.answer_tokens),
        "released_generations_per_s": direct.one_at_a_time(annotation_prompts(texts), arguments.answer_tokens),
        "static_tokens_per_s": direct.static_batch(prompt, arguments.tokens),
        "static_choices_per_s": direct.static_choices(notes(BATCH)),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
