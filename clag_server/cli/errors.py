"""How a command ends: exit codes, and errors that are one sentence on standard error."""

from __future__ import annotations

import enum

__all__ = ["CliError", "ExitCode"]


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
    INTERRUPTED = 130
    """Ctrl-C."""


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
