"""Keys and certificates of the TLS scenarios: an authority, a server on loopback, a client, a stranger."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["Certificates"]

_Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class _Pair:
    certificate: str
    key: str


class _Authority:
    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        built = _builder(self._name, self._name, self._key).add_extension(constraints, critical=True)
        self.certificate = self._signed(built.add_extension(usage, critical=True))

    def issue(self, name: str) -> _Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        names = x509.SubjectAlternativeName([x509.DNSName("localhost"), loopback])
        constraints = x509.BasicConstraints(ca=False, path_length=None)
        built = _builder(subject, self._name, key).add_extension(names, critical=False)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return _Pair(self._signed(built.add_extension(constraints, critical=True)), private.decode("ascii"))

    def _signed(self, builder: x509.CertificateBuilder) -> str:
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode("ascii")


def _builder(subject: x509.Name, issuer: x509.Name, key: _Key) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
    )


class Certificates:
    """Made once for a run; PEM texts for scenarios and files for servers.

    Args:
        folder: where the server's files go.
    """

    def __init__(self, folder: Path) -> None:
        ours, others = _Authority("conformance"), _Authority("others")
        server, client, stranger = ours.issue("server"), ours.issue("client"), others.issue("stranger")
        self.server_certificate = _written(folder / "server.pem", server.certificate)
        self.server_key = _written(folder / "server-key.pem", server.key)
        self.client_authority = _written(folder / "ca.pem", ours.certificate)
        self.variables = {
            "ca": ours.certificate,
            "other_ca": others.certificate,
            "certificate": client.certificate,
            "key": client.key,
            "stranger_certificate": stranger.certificate,
            "stranger_key": stranger.key,
        }


def _written(path: Path, text: str) -> Path:
    path.touch(0o600)
    path.write_text(text, encoding="ascii")
    return path
