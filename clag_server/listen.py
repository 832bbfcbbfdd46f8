"""Where the server listens: locks, sockets, ports, credentials.

Everything that can refuse a start is done here, before a store is opened or a model is loaded.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from clag_server.ops.directories import private_directory
from clag_server.ops.errors import CannotListen
from clag_server.ops.locks import FileLock, port_lock_path
from clag_server.ops.tls import server_credentials
from clag_server.ops.tokens import make_token, read_token
from clag_server.settings import ServerSettings, Settings
from clag_server.settings_sources import runtime_dir

__all__ = ["Credentials", "Listener", "bind", "credentials_of", "locked"]

SOCKET_MODE = 0o600


@dataclass(frozen=True, slots=True)
class Credentials:
    """What TCP callers must show (None without TCP), where that token lies, and the certificates (None without)."""

    token: str | None
    token_file: Path | None
    tls: grpc.ServerCredentials | None


@dataclass(frozen=True, slots=True)
class Listener:
    """What the server listens on, as clients would write it."""

    addresses: tuple[str, ...]


@contextmanager
def locked(settings: Settings) -> Iterator[None]:
    """Hold the locks of the data directory, the socket and the port while the block runs.

    Raises:
        AlreadyRunning: Another server holds one of them.
        UnsafeDirectory: Others can write to a directory.
    """
    server = settings.server
    with ExitStack() as stack:
        data_dir = private_directory(settings.storage.data_dir)
        stack.enter_context(FileLock(data_dir / "clag.lock", what=f"the data directory {data_dir}"))
        if server.socket is not None:
            private_directory(server.socket.parent)
            stack.enter_context(
                FileLock(server.socket.with_name(f"{server.socket.name}.lock"), what=f"the socket {server.socket}")
            )
        if server.tcp and (address := server.tcp_address())[1]:
            path = port_lock_path(private_directory(runtime_dir()), *address)
            stack.enter_context(FileLock(path, what=f"the address {server.tcp}"))
        try:
            yield
        finally:
            # Under the lock: a newer server's socket is never removed.
            if server.socket is not None:
                server.socket.unlink(missing_ok=True)


def credentials_of(settings: Settings) -> Credentials:
    """Read token and certificates; a loopback server without a token file gets one made.

    Raises:
        UnusableFile: A file is missing, open to others, or not what it should be.
    """
    server = settings.server
    if not server.tcp:
        return Credentials(None, None, None)
    path = server.token_file or settings.storage.data_dir / "token"
    token = make_token(path) if server.token_file is None else read_token(path, setting="server.token_file")
    tls = None
    if server.tls_cert is not None and server.tls_key is not None:
        tls = server_credentials(cert=server.tls_cert, key=server.tls_key, client_ca=server.tls_client_ca)
    return Credentials(token, path, tls)


def bind(server: grpc.aio.Server, settings: ServerSettings, credentials: Credentials) -> Listener:
    """Bind all addresses, under their locks.

    Raises:
        CannotListen: An address is taken by another program or does not exist here.
    """
    addresses = []
    if settings.socket is not None:
        addresses.append(_bind_socket(server, settings.socket))
    if settings.tcp:
        addresses.append(_bind_tcp(server, settings, credentials.tls))
    return Listener(tuple(addresses))


def _bind_socket(server: grpc.aio.Server, path: Path) -> str:
    address = f"unix:{path}"
    try:
        if path.exists() and not stat.S_ISSOCK(path.lstat().st_mode):
            raise CannotListen(f"cannot listen on {address}: there is a file that is no socket")
        path.unlink(missing_ok=True)  # left behind by a killed server: we hold its lock
        # The socket must never exist with wider permissions, not even for the moment before a chmod.
        before = os.umask(0o777 & ~SOCKET_MODE)
        try:
            server.add_insecure_port(address)
        finally:
            os.umask(before)
    except (RuntimeError, OSError) as error:
        raise CannotListen(f"cannot listen on {address}: {error}") from error
    return address


def _bind_tcp(server: grpc.aio.Server, settings: ServerSettings, tls: grpc.ServerCredentials | None) -> str:
    host, _ = settings.tcp_address()
    try:
        port = server.add_insecure_port(settings.tcp) if tls is None else server.add_secure_port(settings.tcp, tls)
    except RuntimeError as error:
        raise CannotListen(
            f"cannot listen on {settings.tcp}: another program has the port, or the address is not of this "
            f"machine ({error})"
        ) from error
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
