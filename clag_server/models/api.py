"""What the domain knows of models: an embedder, a small language model, their errors and their status.

No torch, no gRPC, no process: callers await an answer and never see how it was batched (DESIGN section 7).
Two implementations exist: the model worker's client (`engine`) and the scripted double (`scripted`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from clag_server.models.errors import (
    ModelError,
    ModelRequestRefusedError,
    ModelTimeoutError,
    ModelUnavailableError,
    UnusableCause,
    UnusableOutputError,
    WrongShapeError,
)
from clag_server.models.status import EngineMetrics, EngineState, EngineStatus

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from clag_server.models.schema import Json, Schema

__all__ = [
    "ChoiceOption",
    "ChoiceResult",
    "Embedder",
    "EngineMetrics",
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
    "UnusableCause",
    "UnusableOutputError",
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
    batch: float = 1.0
    """Calls that shared its forward passes, itself included; a mean over the passes of a generation."""


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
    value: Json | None = None
    """The checked value where a schema was asked for, else None."""


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
        schema: Schema | None = None,
        grammar: str | None = None,
        max_tokens: int,
        priority: Priority,
        deadline_s: float | None = None,
    ) -> Generation:
        """Continue a prompt, greedily: the same model, prompt and shape give the same text.

        Args:
            prompt: What the model is asked; it becomes the user's turn of the model's chat template, where it
                has one. Control tokens in it are plain text (case T2). What many prompts share belongs at their
                beginning: it is read once and kept.
            schema: The object that the text must be; it is parsed and checked again.
            grammar: Instead of a schema, EBNF (xgrammar's dialect, start rule `root`) that the text must follow.
            max_tokens: Upper bound of the text's tokens; a cut text is marked unfinished.
            priority: Who waits.
            deadline_s: Longest wait in seconds; None waits.

        Returns:
            The text, with its value where a schema was given. With a grammar the caller parses and checks the
            text: it may be cut.

        Raises:
            ModelUnavailableError: The model does not answer now.
            ModelTimeoutError: The deadline passed.
            ModelRequestRefusedError: Empty or over-long prompt, both a schema and a grammar, or one that does
                not compile.
            UnusableOutputError: The text is not a value of the schema (it was cut, or a remote server's model
                wrote something else).
        """

    def stream(
        self,
        prompt: str,
        *,
        max_tokens: int,
        priority: Priority,
        deadline_s: float | None = None,
    ) -> AsyncGenerator[str]:
        """Continue a prompt and yield the text as it is written, in pieces of whole characters.

        An iterator that is closed or cancelled ends the generation.

        Args:
            prompt: As in `generate`.
            max_tokens: Upper bound of the text's tokens.
            priority: Who waits.
            deadline_s: Longest time until the last piece, in seconds; None waits.

        Raises:
            ModelUnavailableError: The model does not answer now, or went away in the middle of the text.
            ModelTimeoutError: The deadline passed.
            ModelRequestRefusedError: Empty or over-long prompt.
        """


class TokenCounter(Protocol):
    """Counts tokens as the language model will."""

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, special tokens neither added nor recognised."""
