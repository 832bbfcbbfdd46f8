"""Models whose answers are written down: the double that the product's tests drive.

The embedder is a real one of its kind: hashed bags of words, so texts that share words are near and the same text
always gets the same vector. Both can be told to misbehave in the ways that models do. `script` says what can
be written in a script.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from clag_server.models.api import (
    ChoiceOption,
    ChoiceResult,
    EngineState,
    EngineStatus,
    Generation,
    ModelError,
    ModelRequestRefusedError,
    ModelTimeoutError,
    ModelUnavailableError,
    Priority,
    Usage,
    WrongShapeError,
)
from clag_server.models.schema import parse
from clag_server.models.script import Call, Script, ScriptError, ScriptFile
from clag_server.models.scripted_random import random_answer, random_scores

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from numpy.typing import NDArray

    from clag_server.models.schema import Schema

__all__ = ["Call", "Script", "ScriptError", "ScriptedEmbedder", "ScriptedSlm", "from_file"]

_DIM = 64


class ScriptedEmbedder:
    """`Embedder` of hashed bags of words.

    Args:
        script: Returns the behaviour; asked at every call.
        dim: Length of a vector.
    """

    def __init__(self, script: Callable[[], Script], dim: int = _DIM) -> None:
        self._script = script
        self._dim = dim

    @property
    def name(self) -> str:
        """Name of the model."""
        return "scripted-embedder"

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self._dim

    @property
    def fingerprint(self) -> str:
        """Identity of the vector space."""
        return hashlib.sha256(f"scripted bag of words {self._dim}".encode()).hexdigest()

    @property
    def status(self) -> EngineStatus:
        """Always ready; a scripted failure shows at the call."""
        return EngineStatus(EngineState.READY, self.name, device="cpu", dtype="float32", loads=1)

    async def embed(
        self, texts: Sequence[str], *, priority: Priority, deadline_s: float | None = None
    ) -> NDArray[np.float32]:
        """Embed texts; see `Embedder.embed`."""
        script = self._script()
        for text in texts:
            script.note(Call("embed", text, (), priority))
        await _misbehave(script.embed, deadline_s)
        if not texts:
            return np.empty((0, self._dim), dtype=np.float32)
        vectors = np.stack([_bag_of_words(text, self._dim) for text in texts])
        if script.embed == "short":
            raise WrongShapeError(f"({len(texts)}, {self._dim})", f"({len(texts) - 1}, {self._dim})")
        if script.embed == "nan":
            raise WrongShapeError("finite numbers", "NaN or infinity")
        return vectors


class ScriptedSlm:
    """`SlmEngine` whose answers come from a script.

    Args:
        script: Returns the behaviour; asked at every call.
    """

    def __init__(self, script: Callable[[], Script]) -> None:
        self._script = script

    @property
    def name(self) -> str:
        """Name of the model."""
        return "scripted-slm"

    @property
    def status(self) -> EngineStatus:
        """As the script says: degraded while it answers `unavailable`."""
        script = self._script()
        if "unavailable" in (script.choose, script.generate):
            return EngineStatus(EngineState.DEGRADED, self.name, "scripted to be unavailable")
        return EngineStatus(EngineState.READY, self.name, device="cpu", dtype="float32", loads=1)

    async def choose(
        self,
        text: str,
        options: Sequence[ChoiceOption],
        *,
        priority: Priority,
        deadline_s: float | None = None,
    ) -> ChoiceResult:
        """Score options; see `SlmEngine.choose`."""
        if not text.strip():
            raise ModelRequestRefusedError("the text to score is empty")
        if not options or any(not option.head.strip() for option in options):
            raise ModelRequestRefusedError("a choice needs at least one option, each with a head")
        script = self._script()
        script.note(Call("choose", text, tuple(options), priority))
        await _misbehave(script.choose, deadline_s)
        if script.choose == "random":
            scores = tuple(random_scores(text, options, seed=script.seed))
        else:
            scores = tuple(_scores(script.choose, text, options))
        if len(scores) != len(options) or not all(map(math.isfinite, scores)):
            raise WrongShapeError(f"{len(options)} finite scores", str(scores))
        return ChoiceResult(scores, Usage(tokens_in=len(text.split())))

    async def generate(
        self,
        prompt: str,
        *,
        schema: Schema | None = None,
        grammar: str | None = None,  # noqa: ARG002 - a scripted answer may break it on purpose
        max_tokens: int,
        priority: Priority,
        deadline_s: float | None = None,
    ) -> Generation:
        """Continue a prompt; see `SlmEngine.generate`."""
        if not prompt.strip():
            raise ModelRequestRefusedError("the prompt is empty")
        script = self._script()
        script.note(Call("generate", prompt, (), priority))
        answers = script.generate
        await _misbehave(answers, deadline_s)
        if answers == "random":
            text = random_answer(prompt, schema, seed=script.seed)
        elif callable(answers):
            text = answers(prompt)
        elif isinstance(answers, str):
            text = answers
        else:
            text = answers[min(script.generated, len(answers) - 1)]
        script.generated += 1
        words = len(text.split())
        usage = Usage(len(prompt.split()), min(words, max_tokens))
        finished = script.finished and words <= max_tokens
        value = parse(schema, text, finished=finished) if schema is not None else None
        return Generation(text, finished, usage, value)

    async def stream(
        self,
        prompt: str,
        *,
        max_tokens: int,
        priority: Priority,
        deadline_s: float | None = None,
    ) -> AsyncGenerator[str]:
        """Yield the scripted text word by word; see `SlmEngine.stream`."""
        answer = await self.generate(prompt, max_tokens=max_tokens, priority=priority, deadline_s=deadline_s)
        for piece in re.findall(r"\S+\s*|\s+", answer.text)[:max_tokens]:
            yield piece


def from_file(path: Path) -> tuple[ScriptedEmbedder, ScriptedSlm]:
    """Return models that follow a script file.

    Raises:
        ScriptError: The file is missing or is not a script.
    """
    script = ScriptFile(path)
    try:
        script()
    except OSError as error:
        raise ScriptError(f"no script {path}: {error.strerror}") from error
    return ScriptedEmbedder(script), ScriptedSlm(script)


async def _misbehave(behaviour: object, deadline_s: float | None) -> None:
    failures: dict[str, ModelError] = {
        "unavailable": ModelUnavailableError("the model is not available (scripted)", 0.05),
        "refuse": ModelRequestRefusedError("refused (scripted)"),
    }
    if not isinstance(behaviour, str):
        return
    if behaviour in failures:
        raise failures[behaviour]
    if behaviour == "hang":
        try:
            async with asyncio.timeout(deadline_s):
                await asyncio.Event().wait()
        except TimeoutError:
            raise ModelTimeoutError(deadline_s or 0.0) from None


def _scores(
    behaviour: str | Callable[[str, Sequence[ChoiceOption]], Sequence[float]],
    text: str,
    options: Sequence[ChoiceOption],
) -> Sequence[float]:
    if callable(behaviour):
        return behaviour(text, options)
    if behaviour == "nan":
        return [math.nan] * len(options)
    if behaviour == "short":
        return [-1.0] * (len(options) - 1)
    if behaviour == "first":
        return [-1.0 - i for i in range(len(options))]
    if behaviour == "last":
        return [-1.0 - i for i in reversed(range(len(options)))]
    words = set(_words(text))
    return [-10.0 + len(words & set(_words(option.head))) for option in options]


def _words(text: str) -> list[str]:
    """Return lower-case words; scripts without spaces give their characters."""
    return re.findall(r"[぀-鿿가-힯]|[^\W_぀-鿿가-힯]+", text.lower())


def _bag_of_words(text: str, dim: int) -> NDArray[np.float32]:
    vector = np.zeros(dim, dtype=np.float64)
    # The empty word keeps texts without words off the zero vector.
    for word in _words(text) or [""]:
        digest = hashlib.sha256(word.encode("utf-8", "replace")).digest()
        # Each word is a fixed point on the sphere: words that differ are nearly orthogonal.
        seed = int.from_bytes(digest[:8], "big")
        vector += np.random.default_rng(seed).standard_normal(dim)
    unit: NDArray[np.float32] = (vector / np.linalg.norm(vector)).astype(np.float32)
    return unit
