"""The bearer token of TCP callers: read from a file that only its owner can read, or made once."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from clag_server.ops.errors import UnusableFile

__all__ = ["MIN_TOKEN_CHARS", "make_token", "read_token"]

MIN_TOKEN_CHARS = 16
"""Shorter tokens could be guessed."""

_TOKEN_BYTES = 32


def read_token(path: Path, *, setting: str, min_chars: int = MIN_TOKEN_CHARS) -> str:
    """Read a token: the file's first line. `min_chars` is less for tokens that others give out.

    Raises:
        UnusableFile: The file cannot be read, others can read it, or the token is empty, short or no ASCII.
    """
    try:
        mode = path.stat().st_mode
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableFile(f"{setting}: cannot read {path}: {error}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UnusableFile(f"{setting}: {path} is open to others (mode {stat.S_IMODE(mode):04o}); make it 0600")
    if len(token) < min_chars or not token.isascii() or any(character.isspace() for character in token):
        raise UnusableFile(
            f"{setting}: {path} must hold one token of at least {min_chars} ASCII characters without spaces"
        )
    return token


def make_token(path: Path) -> str:
    """Read the server's own token file, made with a random token (0600) where there is none yet.

    Raises:
        UnusableFile: The file cannot be written, or an existing one is not usable.
    """
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return read_token(path, setting="the server's token file")
    except OSError as error:
        raise UnusableFile(f"cannot write the token file {path}: {error.strerror}") from error
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(secrets.token_urlsafe(_TOKEN_BYTES) + "\n")
    return read_token(path, setting="the server's token file")
