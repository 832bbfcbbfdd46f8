"""Reasons for which a server does not start, each one sentence that says what to do."""

from __future__ import annotations

from pathlib import Path

__all__ = ["AlreadyRunning", "CannotListen", "ModelsMissing", "StartRefused", "UnsafeDirectory", "UnusableFile"]


class StartRefused(Exception):
    """Base of all; `exit_code` is what the command exits with."""

    exit_code = 1


class AlreadyRunning(StartRefused):
    """Another server holds the data directory, socket or port (case O1)."""

    exit_code = 3

    def __init__(self, what: str, *, pid: int | None) -> None:
        holder = f"another server (process {pid})" if pid else "another server"
        super().__init__(f"{what} is in use by {holder}; stop it, or give this server its own")
        self.pid = pid


class CannotListen(StartRefused):
    """The address cannot be bound."""

    exit_code = 3


class UnsafeDirectory(StartRefused):
    """Others could put their own socket or files in the place of ours."""

    exit_code = 2

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"the directory {path} {why}; use one that only you can write to")


class UnusableFile(StartRefused):
    """A file named in the settings (token, certificate, key) cannot be used."""

    exit_code = 2


class ModelsMissing(StartRefused):
    """A model is not on this machine or cannot be loaded (case E4)."""

    exit_code = 4
