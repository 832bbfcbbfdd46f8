"""The language model of a server that has none: every call says so, and callers take their documented fallback."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from clag_server.models.api import (
    ChoiceOption,
    EngineState,
    EngineStatus,
    ModelUnavailableError,
    Priority,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clag_server.models.schema import Schema

__all__ = ["AbsentSlm"]

_REASON = "no language model is configured"


class AbsentSlm:
    """`SlmEngine` that is not there."""

    @property
    def name(self) -> str:
        """Name of the model."""
        return "none"

    @property
    def status(self) -> EngineStatus:
        """Absent, by configuration."""
        return EngineStatus(EngineState.ABSENT, self.name, _REASON)

    async def choose(
        self,
        text: str,  # noqa: ARG002 - the protocol's signature, as below
        options: Sequence[ChoiceOption],  # noqa: ARG002
        *,
        priority: Priority,  # noqa: ARG002
        deadline_s: float | None = None,  # noqa: ARG002
    ) -> NoReturn:
        """Raise `ModelUnavailableError`."""
        raise ModelUnavailableError(_REASON)

    async def generate(
        self,
        prompt: str,  # noqa: ARG002
        *,
        schema: Schema | None = None,  # noqa: ARG002
        grammar: str | None = None,  # noqa: ARG002
        max_tokens: int,  # noqa: ARG002
        priority: Priority,  # noqa: ARG002
        deadline_s: float | None = None,  # noqa: ARG002
    ) -> NoReturn:
        """Raise `ModelUnavailableError`."""
        raise ModelUnavailableError(_REASON)

    def stream(
        self,
        prompt: str,  # noqa: ARG002
        *,
        max_tokens: int,  # noqa: ARG002
        priority: Priority,  # noqa: ARG002
        deadline_s: float | None = None,  # noqa: ARG002
    ) -> NoReturn:
        """Raise `ModelUnavailableError`."""
        raise ModelUnavailableError(_REASON)
