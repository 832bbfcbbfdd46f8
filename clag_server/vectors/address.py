"""Which Milvus holds the index: none (the embedded one), or a server by its address, with token and certificate."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["MilvusAddressError", "MilvusServer", "check_uri", "milvus_server"]


class MilvusAddressError(ValueError):
    """The address of the Milvus server cannot be used; one sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class MilvusServer:
    """A Milvus server.

    Attributes:
        uri: Checked by `check_uri`; without a password, for it is named in logs and errors.
        token: "user:password" or an API key; "" for a server without authentication.
        ca_file: PEM certificates of the authorities that sign the server's; None takes the system's.
    """

    uri: str
    token: str = field(default="", repr=False)
    ca_file: Path | None = None


def milvus_server(uri: str, token: str, ca_file: Path | None) -> MilvusServer:
    """Return the server that settings name; a password in the address (`check_uri`) becomes the token."""
    parts = urlsplit(uri)
    if parts.username is None or uri.startswith("unix:"):
        return MilvusServer(uri, token, ca_file)
    plain = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return MilvusServer(plain, f"{unquote(parts.username)}:{unquote(parts.password or '')}", ca_file)


def check_uri(uri: str, *, token: bool, ca_file: bool) -> None:
    """Check how a server would be reached.

    Args:
        uri: `https://host:port`, `http://host:port`, or `unix:/path` of a socket on this machine.
        token: Whether a token goes with it.
        ca_file: Whether certificates are given.

    Raises:
        MilvusAddressError: It is not an address, or the token or password would cross a network in the clear.
    """
    if uri.startswith("unix:"):
        if not uri.removeprefix("unix:").startswith("/"):
            raise MilvusAddressError("a Milvus socket is named by its whole path, such as unix:/run/milvus.sock")
        if ca_file:
            raise MilvusAddressError("index.ca_file needs an https address, a socket has no certificate")
        return
    try:
        parts = urlsplit(uri)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise MilvusAddressError(f"the Milvus address is not an address: {error}") from error
    if parts.scheme not in ("http", "https") or not host:
        raise MilvusAddressError("the Milvus address must be like https://milvus.example:19530")
    inside = parts.username is not None or parts.password is not None
    if inside and token:
        raise MilvusAddressError("the Milvus address holds a password beside index.token_file; leave one out")
    if parts.query or parts.fragment:
        raise MilvusAddressError("the Milvus address must not have a query or a fragment")
    if parts.scheme == "http" and ca_file:
        raise MilvusAddressError("index.ca_file needs an https address")
    if parts.scheme == "http" and (token or inside) and not _is_here(host):
        raise MilvusAddressError(
            f"the Milvus token would cross the network to {host} in the clear; use https, or no token"
        )


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
