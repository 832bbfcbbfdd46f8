"""What a model call can raise on purpose. Callers take their documented fallback by these types."""

from __future__ import annotations

import enum

__all__ = [
    "ModelError",
    "ModelRequestRefusedError",
    "ModelTimeoutError",
    "ModelUnavailableError",
    "UnusableCause",
    "UnusableOutputError",
    "WrongShapeError",
]


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


class WorkerEndedError(ModelUnavailableError):
    """The worker ended with this request in hand; it is being started again.

    Attributes:
        running: Whether the request was in the pass that ran then, and so may be what ended it.
    """

    def __init__(self, because: ModelUnavailableError, *, running: bool) -> None:
        super().__init__(because.reason, because.retry_after_s)
        self.running = running


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


class UnusableCause(enum.Enum):
    """Why a generated text is not a value of its schema."""

    CUT = "cut"
    """The token limit ended it."""
    NOT_JSON = "not_json"
    """Prose, an unclosed brace, an empty text."""
    WRONG_FIELDS = "wrong_fields"
    """A field is missing, unknown or of another kind."""
    OUT_OF_BOUNDS = "out_of_bounds"
    """A text, list or number is outside its bounds, or a value is not one of those offered."""


class UnusableOutputError(ModelError):
    """A generated text is not a value of the schema that was asked for.

    Attributes:
        cause: Why, for counting.
        text: What the model wrote, at most 200 characters of it.
    """

    def __init__(self, cause: UnusableCause, detail: str, text: str) -> None:
        super().__init__(f"the model's answer cannot be used ({cause.value}): {detail}")
        self.cause = cause
        self.text = text[:200]
