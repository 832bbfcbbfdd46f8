"""A remote server and the model worker, both with the bundled model's weights, score choices alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from clag_server.models.api import ChoiceOption, Priority
from clag_server.models.config import ModelsConfig
from clag_server.models.factory import build_models
from clag_server.models.remote_scores import ScoreMethod
from clag_server.models.specs import ModelKind
from clag_server.models.store import ModelStore
from tests.support.openai_double import Abilities, OpenAiDouble
from tests.support.remote_slm import connected

pytestmark = [pytest.mark.models, pytest.mark.slow, pytest.mark.timeout(300)]

OPTIONS = [
    ChoiceOption("a", "Topic: Pets at home\nTags: dog, cat\nA note about this topic:"),
    ChoiceOption("b", "Topic: Deadlines and projects\nAbout: Work in the office.\nA note about this topic:"),
    ChoiceOption("c", "Topic: 猫と犬\nA note about this topic:"),
]
TEXTS = [
    "The cat sleeps on the warm roof.",
    "猫は屋根にいる",
    "(see log) 12% left, 3.5 V",
    "The report is due on Friday!",
]


class RealScorer:
    """Log-probabilities of prompts by the model itself, as a server with that model computes them."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._torch = torch
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def __call__(self, prompt: str) -> tuple[list[str], list[float]]:
        torch = self._torch
        ids = self._tokenizer(prompt, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            logs = self._model(ids).logits[0].log_softmax(-1)
        scores = [0.0, *logs[:-1].gather(1, ids[0, 1:, None])[:, 0].tolist()]
        return [str(one) for one in ids[0].tolist()], scores


async def test_choices_by_prompt_log_probabilities_equal_those_of_the_worker(model_cache: Path) -> None:
    folder = ModelStore(model_cache).resolve("smollm2-135m-instruct", ModelKind.SLM).path
    local = build_models(ModelsConfig(cache=model_cache, dtype="float32"))
    await local.start()
    try:
        able = Abilities(scores=ScoreMethod.ECHO)
        async with OpenAiDouble(able, scorer=RealScorer(folder)).serving() as double, connected(double) as remote:
            for text in TEXTS:
                ours = await local.slm.choose(text, OPTIONS, priority=Priority.INTERACTIVE)
                theirs = await remote.slm.choose(text, OPTIONS, priority=Priority.INTERACTIVE)
                assert theirs.scores == pytest.approx(ours.scores, abs=0.05)
    finally:
        await local.stop()
