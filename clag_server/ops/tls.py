"""TLS of the TCP listener: server certificate, and optionally only clients of one authority (mutual TLS)."""

from __future__ import annotations

from pathlib import Path

import grpc

from clag_server.ops.errors import UnusableFile

__all__ = ["server_credentials"]


def server_credentials(*, cert: Path, key: Path, client_ca: Path | None) -> grpc.ServerCredentials:
    """Read PEM files into credentials.

    Args:
        cert: The server's certificate chain.
        key: Its private key.
        client_ca: Authorities of client certificates; None lets clients in without one.

    Raises:
        UnusableFile: A file cannot be read or is no PEM of its kind.
    """
    pair = (_pem(key, "PRIVATE KEY", "server.tls_key"), _pem(cert, "CERTIFICATE", "server.tls_cert"))
    authorities = None if client_ca is None else _pem(client_ca, "CERTIFICATE", "server.tls_client_ca")
    return grpc.ssl_server_credentials(
        [pair], root_certificates=authorities, require_client_auth=authorities is not None
    )


def _pem(path: Path, label: str, setting: str) -> bytes:
    """Read a PEM file. gRPC would fail late and without a name, hence the check here."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UnusableFile(f"{setting}: cannot read {path}: {error.strerror}") from error
    if f"{label}-----".encode("ascii") not in content:
        raise UnusableFile(f"{setting}: {path} holds no PEM block of a {label.lower()}")
    return content
