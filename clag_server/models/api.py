"""What the domain knows of models: an embedder, a small language model, their errors and their status.

No torch, no gRPC, no process: callers await an answer and never see how it was batched (DESIGN section 7).
Two implementations exist: the model worker's client (`engine`) and the scripted double (`scripted`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "ChoiceOption",
    "ChoiceResult",
    "Embedder",
    "EngineState",
    "EngineStatus",
    "Generation",
    "ModelError",
    "ModelRequestRefusedError",
    "ModelTimeoutError",
    "ModelUnavailableError",
    "Priority",
    "SlmEngine",
    "TokenCounter",
    "Usage",
    "WrongShapeError",
]


class Priority(enum.IntEnum):
    """Who waits for an answer; a lower value is served first."""

    INTERACTIVE = 0
    """A caller waits: a query's embedding, a selection, an answer."""
    ORGANIZE = 1
    """The ingest pipeline: memories that are stored and wait to be embedded, routed and evolved."""
    BULK = 2
    """Nobody waits: imports, re-embedding, re-organization."""


class ModelError(Exception):
    """Base of everything a model call can raise on purpose."""


class ModelUnavailableError(ModelError):
    """The model does not answer now: it loads, its process ended, or there is none. Try again later.

    Attributes:
        reason: One sentence.
        retry_after_s: When a retry makes sense, in seconds; None when nobody knows (no model configured).
    """

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s


class ModelTimeoutError(ModelError):
    """The caller's deadline passed before the answer was there.

    Attributes:
        deadline_s: The time the caller gave, in seconds.
    """

    def __init__(self, deadline_s: float) -> None:
        super().__init__(f"no answer from the model within {deadline_s:g} s")
        self.deadline_s = deadline_s


class ModelRequestRefusedError(ModelError):
    """The request itself cannot be served: empty, over-long, a grammar that does not compile. Do not retry.

    Attributes:
        reason: What is wrong, with the limit where there is one.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class WrongShapeError(ModelError):
    """The model's answer does not fit the question: n texts did not give n vectors, or values are not finite.

    Attributes:
        expected: What was asked for, such as `(3, 384)`.
        got: What came back.
    """

    def __init__(self, expected: str, got: str) -> None:
        super().__init__(f"the model answered {got} where {expected} was expected")
        self.expected = expected
        self.got = got


@dataclass(frozen=True, slots=True)
class Usage:
    """What one call cost."""

    tokens_in: int = 0
    """Tokens that the model read, cached prefixes not counted."""
    tokens_out: int = 0
    queue_s: float = 0.0
    """Seconds between the call and the start of its batch."""
    compute_s: float = 0.0
    """Seconds that the call's batch ran."""


@dataclass(frozen=True, slots=True)
class ChoiceOption:
    """One candidate of a choice: a cluster, seen as the beginning of a text that the memory may continue."""

    key: str
    """Identity of the candidate, such as namespace and cluster. A new head under the same key replaces the
    old one in the prefix cache; two keys never share text by accident."""
    head: str
    """The text that the score conditions on (title, summary, tags, representatives), without trailing space."""


@dataclass(frozen=True, slots=True)
class ChoiceResult:
    """The channel scores of one choice."""

    scores: tuple[float, ...]
    """Log P(text | head of the option) in nats, summed over the text's tokens, in the order of the options.
    Comparable within one result only."""
    usage: Usage = Usage()
    clipped: bool = False
    """True when the text or a head was longer than the limit and only its beginning was read."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A generated text."""

    text: str
    finished: bool
    """True when the model (or the grammar) ended the text, False when `max_tokens` cut it."""
    usage: Usage = Usage()


class EngineState(enum.Enum):
    """Whether a model answers."""

    LOADING = "loading"
    """Its process starts or reads the weights; calls wait."""
    READY = "ready"
    DEGRADED = "degraded"
    """Its process ended or hangs and is started again; calls fail with `ModelUnavailableError`."""
    ABSENT = "absent"
    """There is no such model: none configured, or it cannot be loaded; calls fail."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """One model's status, for health, `GetServerInfo` and error messages."""

    state: EngineState
    model: str
    reason: str = ""
    """Why the model is not READY; one sentence."""
    device: str = ""
    """`cpu`, `cuda:0`, `mps`; empty until loaded."""
    dtype: str = ""
    """`float32`, `bfloat16`; empty until loaded."""
    loads: int = 0
    """How often the model was loaded since the server started."""
    restarts: int = 0
    """How often its process was started again."""
    queue_depth: int = 0
    """Texts or calls that wait for a batch."""
    load_s: float = 0.0
    """Seconds that the last load took, imports included."""


class Embedder(Protocol):
    """Turns texts into points whose inner product is their likeness."""

    @property
    def name(self) -> str:
        """Name of the model, for people."""

    @property
    def dim(self) -> int:
        """Length of a vector."""

    @property
    def fingerprint(self) -> str:
        """Identity of the vector space: hex SHA-256 over weights, tokenizer and pooling (case E1)."""

    async def embed(
        self, texts: Sequence[str], *, priority: Priority, deadline_s: float | None = None
    ) -> NDArray[np.float32]:
        """Embed texts.

        Args:
            texts: Any number of texts, in any script; a text past the model's window counts by its beginning.
            priority: Who waits.
            deadline_s: Longest wait in seconds; None waits.

        Returns:
            Array of shape (len(texts), dim), rows of length 1, row i for text i.

        Raises:
            ModelUnavailableError: The model does not answer now.
            ModelTimeoutError: The deadline passed.
            ModelRequestRefusedError: A text is not valid Unicode.
            WrongShapeError: The model's answer does not fit; no row was guessed.
        """


class SlmEngine(Protocol):
    """The small language model: it scores choices and writes short texts."""

    @property
    def name(self) -> str:
        """Name of the model, for people."""

    async def choose(
        self,
        text: str,
        options: Sequence[ChoiceOption],
        *,
        priority: Priority,
        deadline_s: float | None = None,
    ) -> ChoiceResult:
        """Score how likely the text is after each option's head (the channel score).

        Args:
            text: A memory or a question. Control tokens in it are plain text (case T2).
            options: The candidates, at least one.
            priority: Who waits.
            deadline_s: Longest wait in seconds; None waits.

        Returns:
            One score an option, in their order.

        Raises:
            ModelUnavailableError: The model does not answer now.
            ModelTimeoutError: The deadline passed.
            ModelRequestRefusedError: Empty text, no options, or an empty head.
            WrongShapeError: Not one finite score an option.
        """

    async def generate(
        self,
        prompt: str,
        *,
        grammar: str | None,
        max_tokens: int,
        priority: Priority,
        deadline_s: float | None = None,
    ) -> Generation:
        """Continue a prompt, greedily: the same model, prompt and grammar give the same text.

        Args:
            prompt: What the model is asked; it becomes the user's turn of the model's chat template, where it
                has one. Control tokens in it are plain text (case T2).
            grammar: EBNF (xgrammar's dialect, start rule `root`) that the text must follow, or None.
            max_tokens: Upper bound of the text's tokens; a cut text is marked unfinished.
            priority: Who waits.
            deadline_s: Longest wait in seconds; None waits.

        Returns:
            The text. Also with a grammar the caller parses and checks it: it may be cut.

        Raises:
            ModelUnavailableError: The model does not answer now.
            ModelTimeoutError: The deadline passed.
            ModelRequestRefusedError: Empty or over-long prompt, or a grammar that does not compile.
        """


class TokenCounter(Protocol):
    """Counts tokens as the language model will."""

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, special tokens neither added nor recognised."""
