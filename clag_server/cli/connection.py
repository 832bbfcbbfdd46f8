"""From flags and settings to a connection, and from a failed call to an exit code."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import grpc
from clag.v1 import types_pb2
from clag_client import AsyncClient, ClagError, RetryPolicy, Tls
from clag_client.connect import is_local

from clag_server.cli.config import load_settings
from clag_server.cli.errors import CliError, ExitCode, exit_code_of
from clag_server.cli.options import ConnectionFlags
from clag_server.cli.terms import retold
from clag_server.ops.errors import UnusableFile
from clag_server.ops.tokens import read_token
from clag_server.settings import Settings

__all__ = ["Endpoint", "endpoint", "explained", "talk", "went_away"]

_T = TypeVar("_T")

_ADVICE: Final = {
    grpc.StatusCode.UNAUTHENTICATED: "give the server's token with --token-file",
    grpc.StatusCode.DEADLINE_EXCEEDED: "allow more time with --timeout",
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server is: its address, the token to present ("" for none), TLS (None for plain text)."""

    target: str
    token: str
    tls: Tls | None


def talk(
    flags: ConnectionFlags, work: Callable[[AsyncClient], Awaitable[_T]], *, retry: RetryPolicy | None = None
) -> _T:
    """Connect, do the work, disconnect.

    Args:
        flags: How the caller wants to reach the server.
        work: A coroutine function that gets the client.
        retry: How long streams look for a server that went away; None is the client's default.

    Raises:
        CliError: The server cannot be reached, or a call failed; one sentence and the exit code.
    """
    there = endpoint(flags)

    async def connected() -> _T:
        async with AsyncClient(
            there.target, token=there.token, tls=there.tls, timeout_s=flags.timeout_s, retry=retry
        ) as client:
            return await work(client)

    try:
        return asyncio.run(connected())
    except ClagError as error:
        raise explained(error, there.target) from error


def endpoint(flags: ConnectionFlags) -> Endpoint:
    """Find out where the server is and how to speak to it: flags first, then the settings.

    Raises:
        CliError: The settings are wrong, or a file that they or the flags name cannot be used.
    """
    settings = load_settings({}, flags.config)
    target = _target(flags, settings)
    token, tls = _token(flags, settings, target), _tls(flags)
    if token and tls is None and not is_local(target):
        raise CliError(
            f"the token is not sent to {target} in plain text: speak TLS with --tls-ca, or use a tunnel and a "
            "loopback address",
            ExitCode.USAGE,
        )
    return Endpoint(target, token, tls)


def explained(error: ClagError, target: str) -> CliError:
    """Turn a failed call into one sentence that says what to do, and an exit code."""
    if _unreachable(error):
        return CliError(
            f"no server answers at {target}: start one with `clag serve`, or say where it is with --socket or "
            "--address",
            ExitCode.UNREACHABLE,
        )
    if error.code is grpc.StatusCode.UNIMPLEMENTED and error.reason == types_pb2.ERROR_REASON_UNSPECIFIED:
        return CliError(
            f"the server at {target} is not a CLAG server, or too old a one; say where yours is with --socket or "
            "--address",
            ExitCode.UNREACHABLE,
        )
    parts = [retold(error.message, error.violations) or error.code.name]
    if "incident_id" in error.metadata and error.metadata["incident_id"] not in error.message:
        parts.append(f"incident {error.metadata['incident_id']} in the server's log")
    if error.code in _ADVICE:
        parts.append(_ADVICE[error.code])
    if error.retry_after_s is not None:
        parts.append(f"try again in {error.retry_after_s:.3g} s")
    return CliError("; ".join(parts), exit_code_of(error.code.name, types_pb2.ErrorReason.Name(error.reason)))


def went_away(error: CliError) -> bool:
    """Whether a call ended because nobody is there any more; for calls that had begun."""
    return isinstance(error.__cause__, ClagError) and _unreachable(error.__cause__)


def _unreachable(error: ClagError) -> bool:
    """Whether nobody answered: gRPC itself says UNAVAILABLE, without a reason of the server's."""
    return error.code is grpc.StatusCode.UNAVAILABLE and error.reason == types_pb2.ERROR_REASON_UNSPECIFIED


def _target(flags: ConnectionFlags, settings: Settings) -> str:
    if flags.address is not None:
        return flags.address
    socket = flags.socket or settings.server.socket
    if socket is not None:
        return f"unix:{socket.expanduser().absolute()}"
    return settings.server.tcp


def _token(flags: ConnectionFlags, settings: Settings, target: str) -> str:
    """The token to present: that of the flags; for this machine's server also that of its settings, or its own.

    Nobody named a token for the other machine: whoever answers there must not learn this machine's.
    """
    if flags.token_file is not None:
        return _read_token(flags.token_file, "--token-file")
    if target.startswith("unix:") or not is_local(target):
        return ""  # a socket's mode is its lock
    if settings.server.token_file is not None:
        return _read_token(settings.server.token_file, "server.token_file")
    made = settings.storage.data_dir / "token"
    return _read_token(made, "the local server's token") if made.is_file() else ""


def _read_token(path: Path, setting: str) -> str:
    try:
        return read_token(path.expanduser(), setting=setting)
    except UnusableFile as error:
        raise CliError(str(error), ExitCode.USAGE) from error


def _tls(flags: ConnectionFlags) -> Tls | None:
    if flags.tls_ca is None:
        return None
    if flags.tls_ca == "system":
        return Tls()
    try:
        return Tls.from_files(root_certificates=Path(flags.tls_ca).expanduser())
    except OSError as error:
        raise CliError(f"--tls-ca: cannot read {flags.tls_ca}: {error.strerror}", ExitCode.USAGE) from error
