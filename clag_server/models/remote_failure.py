"""What went wrong with one request to a model server, and whether trying again makes sense."""

from __future__ import annotations

import enum

__all__ = ["FailureKind", "RemoteFailure"]


class FailureKind(enum.Enum):
    """What a failure says about the server and about the request."""

    DOWN = "down"
    """No answer, half an answer, or a server error: try again; counts against the server."""
    BUSY = "busy"
    """The server lives but wants fewer requests (429): try again, not sooner than it says."""
    REFUSED = "refused"
    """This request is at fault (400, 413, 422): the same again would fail again."""
    NOT_OFFERED = "not offered"
    """No such path, method or model there (404, 405, 501)."""
    FORBIDDEN = "forbidden"
    """The key is missing or wrong (401, 403)."""
    GARBLED = "garbled"
    """An answer came and is not what the interface promises: try again; counts against the server."""


_AGAIN = frozenset({FailureKind.DOWN, FailureKind.BUSY, FailureKind.GARBLED})
_AGAINST = frozenset({FailureKind.DOWN, FailureKind.GARBLED})


class RemoteFailure(Exception):
    """One request failed; turned into one of the engine's errors before a caller sees it.

    Attributes:
        kind: What it says.
        reason: One sentence without secrets and without the request's text.
        retry_after_s: The wait in seconds that the server asked for, or None.
        final: True when a part of the answer was already passed on, so that another try would repeat it.
    """

    def __init__(
        self, kind: FailureKind, reason: str, retry_after_s: float | None = None, *, final: bool = False
    ) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.final = final

    @property
    def again(self) -> bool:
        """Whether another try can succeed."""
        return self.kind in _AGAIN and not self.final

    @property
    def against_server(self) -> bool:
        """Whether it counts towards the opening of the circuit breaker."""
        return self.kind in _AGAINST
