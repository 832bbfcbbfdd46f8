"""How a command ends: exit codes, and errors that are one sentence on standard error.

Statuses and reasons of the server go by their names here: `clag --help` needs no gRPC.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

__all__ = ["CliError", "ExitCode", "exit_code_of"]


class ExitCode(enum.IntEnum):
    """What a command exits with; part of the command line's contract (docs/cli.md)."""

    OK = 0
    PARTIAL = 1
    """Some items were rejected or quarantined, or what was asked for does not exist."""
    USAGE = 2
    """Wrong flags, settings, or input that cannot be read."""
    UNREACHABLE = 3
    """No server there, it refused the caller, or another server holds the data directory, socket or port."""
    SERVER = 4
    """The server failed while it answered, the output cannot be written, or `clag` itself has a fault."""
    MODEL_MISSING = 5
    """A model is not on this machine, or its files are broken."""
    REFUSED = 6
    """The server works and refuses this as things are: it exists already, changed meanwhile, another embedder."""
    INTERRUPTED = 130
    """Ctrl-C."""


_OF_REASON: Final[Mapping[str, ExitCode]] = {
    "DRAINING": ExitCode.UNREACHABLE,
    "MESSAGE_TOO_LARGE": ExitCode.USAGE,
    "ETAG_MISMATCH": ExitCode.REFUSED,
    "STREAM_FENCED": ExitCode.REFUSED,
    "MODEL_MISMATCH": ExitCode.REFUSED,
    "CLUSTER_STATE": ExitCode.REFUSED,
    "OPERATION_RUNNING": ExitCode.REFUSED,
    "NAMESPACE_LIMIT": ExitCode.REFUSED,
}
"""Reasons of the contract (without their prefix) that say more than the status they come with."""

_OF_STATUS: Final[Mapping[str, ExitCode]] = {
    "NOT_FOUND": ExitCode.PARTIAL,
    "INVALID_ARGUMENT": ExitCode.USAGE,
    "OUT_OF_RANGE": ExitCode.USAGE,
    "ALREADY_EXISTS": ExitCode.REFUSED,
    "UNAUTHENTICATED": ExitCode.UNREACHABLE,
    "PERMISSION_DENIED": ExitCode.UNREACHABLE,
}


def exit_code_of(status: str, reason: str) -> ExitCode:
    """Return what a command exits with whose call failed; SERVER for all that is the server's own fault.

    Args:
        status: Name of the gRPC status, e.g. "NOT_FOUND".
        reason: Name of the contract's reason, e.g. "ERROR_REASON_ETAG_MISMATCH".
    """
    known = _OF_REASON.get(reason.removeprefix("ERROR_REASON_"))
    return known or _OF_STATUS.get(status, ExitCode.SERVER)


class CliError(Exception):
    """A command cannot go on.

    Args:
        message: One sentence: what is wrong and what to do.
        code: What the command exits with.
    """

    def __init__(self, message: str, code: ExitCode) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
