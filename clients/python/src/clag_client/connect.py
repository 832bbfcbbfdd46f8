"""How to reach a server: a Unix socket or TCP, a bearer token, TLS."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

__all__ = ["Tls", "channel_to", "is_local", "metadata_for"]

MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""The server's limit of a message, in both directions (see GetServerInfo)."""

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A server that restarts is back in 6 to 16 s: gRPC's own pauses of up to two minutes would miss that by far.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


@dataclass(frozen=True, slots=True)
class Tls:
    """Keys and certificates, in PEM.

    Attributes:
        root_certificates: whom to trust; None trusts what the system trusts.
        certificate_chain: our own certificate, where the server asks for one.
        private_key: the key of our certificate.
        server_name: the name to expect in the server's certificate; empty expects the host's.
    """

    root_certificates: bytes | None = None
    certificate_chain: bytes | None = None
    private_key: bytes | None = None
    server_name: str = ""

    @classmethod
    def from_files(
        cls,
        *,
        root_certificates: Path | None = None,
        certificate_chain: Path | None = None,
        private_key: Path | None = None,
        server_name: str = "",
    ) -> Tls:
        """Read PEM files.

        Raises:
            OSError: if one cannot be read.
        """
        read = [path.read_bytes() if path else None for path in (root_certificates, certificate_chain, private_key)]
        return cls(read[0], read[1], read[2], server_name)


def channel_to(target: str, *, tls: Tls | None = None, keepalive_s: float | None = None) -> grpc.aio.Channel:
    """Make a channel; it connects at the first call.

    Args:
        target: "unix:PATH", a path that begins with "/", or "host:port".
        tls: None speaks plain text, which servers accept on Unix sockets and loopback addresses.
        keepalive_s: seconds between pings on an idle connection with open calls; None for none.

    Raises:
        ValueError: if the target is empty.
    """
    if not target:
        raise ValueError("the address of the server is empty")
    address = f"unix:{target}" if target.startswith("/") else target
    options: list[tuple[str, int | str]] = list(_OPTIONS)
    if keepalive_s is not None:
        options.append(("grpc.keepalive_time_ms", int(keepalive_s * 1_000)))
    if is_local(target):
        # A proxy of the environment would get what must not leave this machine, the token with it.
        options.append(("grpc.enable_http_proxy", 0))
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    if tls.server_name:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    credentials = grpc.ssl_channel_credentials(tls.root_certificates, tls.private_key, tls.certificate_chain)
    return grpc.aio.secure_channel(address, credentials, options=options)


def is_local(target: str) -> bool:
    """Whether what is sent to a target stays on this machine: a Unix socket, "localhost" or a loopback address.

    Other names count as elsewhere, wherever they lead now: who answers for a name can change.

    Args:
        target: as for `channel_to`.
    """
    if target.startswith(("/", "unix:", "unix-abstract:")):
        return True
    address = target.removeprefix("dns:").removeprefix("ipv4:").removeprefix("ipv6:").rpartition("/")[2]
    hosts = [_host(one).lower() for one in address.split(",")]
    return all(host == "localhost" or _is_loopback(host) for host in hosts)


def metadata_for(token: str, *, target: str, tls: Tls | None) -> tuple[tuple[str, str], ...]:
    """Return the metadata that carries a bearer token; none for an empty one.

    Raises:
        ValueError: if the token would cross a network in plain text.
    """
    if not token:
        return ()
    if tls is None and not is_local(target):
        raise ValueError(f"a token is not sent to {target} in plain text: give `tls`, or use a loopback address")
    return (("authorization", f"Bearer {token}"),)


def _host(address: str) -> str:
    """The host of "host:port", "[v6]:port", "host" or "v6"."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.rpartition(":")[0] if address.count(":") == 1 else address


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
