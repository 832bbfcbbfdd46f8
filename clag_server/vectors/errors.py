"""Why a backend call failed, as far as the index must tell: try again later, or stop trusting what is stored."""

from __future__ import annotations

__all__ = ["BackendAwayError", "BackendFaultError", "RebuildWantedError"]


class BackendAwayError(Exception):
    """The backend did not answer; what it stores is not in doubt. `hung` says that it took too long."""

    def __init__(self, what: str, *, hung: bool = False) -> None:
        super().__init__(what)
        self.hung = hung


class BackendFaultError(Exception):
    """The backend answered with an error: what it stores is in doubt until it is rebuilt."""


class RebuildWantedError(Exception):
    """What the collection holds is not what the catalog says, or somebody asked; the message says why."""
