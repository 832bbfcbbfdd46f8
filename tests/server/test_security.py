"""Who gets in: tokens on TCP, certificates, and nobody through an open directory."""

from __future__ import annotations

import datetime
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import grpc
import pytest
from clag.v1 import admin_service_pb2
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from grpc_health.v1 import health_pb2

from tests.conftest import ServerMaker
from tests.support.process import ServerProcess
from tests.support.status import refused

Metadata: TypeAlias = tuple[tuple[str, str], ...]

INFO = admin_service_pb2.GetServerInfoRequest()
TOKEN = "a-token-for-tests-0123456789"
HEALTH = health_pb2.HealthCheckRequest()


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and its key, as files."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates for tests."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._build(self._name, self._key).add_extension(x509.BasicConstraints(True, None), True)
        self.cert = folder / f"{name}.pem"
        self._write(self.cert, certificate)

    def issue(self, name: str) -> Identity:
        """A certificate for the loopback address."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.DNSName(name)])
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        identity = Identity(self._folder / f"{name}-cert.pem", self._folder / f"{name}-key.pem")
        self._write(identity.cert, self._build(subject, key).add_extension(names, False))
        identity.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return identity

    def _build(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )

    def _write(self, path: Path, certificate: x509.CertificateBuilder) -> None:
        signed = certificate.sign(self._key, hashes.SHA256())
        path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))


def port_of(server: ServerProcess) -> int:
    """The TCP port of the ready line."""
    line = next(line for line in server.log.splitlines() if '"ready"' in line)
    return int(line.partition("127.0.0.1:")[2].partition('"')[0])


def bearer(token: str) -> Metadata:
    return (("authorization", f"Bearer {token}"),)


def test_a_loopback_port_makes_a_token_and_lets_in_only_who_has_it(make_server: ServerMaker) -> None:
    server = make_server(server__tcp="127.0.0.1:0").start()
    path = server.data_dir / "token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert str(path) in server.log
    token = path.read_text("ascii").strip()
    assert token not in server.log
    tcp = server.connect(f"127.0.0.1:{port_of(server)}")
    rejected: list[Metadata] = [(), bearer("wrong"), bearer(""), (("authorization", token),)]
    for metadata in rejected:
        with refused(grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED"):
            tcp.admin.GetServerInfo(INFO, metadata=metadata, timeout=20)
    assert tcp.admin.GetServerInfo(INFO, metadata=bearer(token), timeout=20).contract == "clag.v1"
    assert tcp.health.Check(HEALTH, timeout=20).status == health_pb2.HealthCheckResponse.SERVING
    assert server.connect().admin.GetServerInfo(INFO, timeout=20).contract == "clag.v1"


def test_with_mutual_tls_only_clients_of_the_authority_get_in(make_server: ServerMaker, tmp_path: Path) -> None:
    ours, others = Authority(tmp_path, "ours"), Authority(tmp_path, "others")
    identity, client, stranger = ours.issue("server"), ours.issue("client"), others.issue("stranger")
    token_file = tmp_path / "token"
    token_file.touch(0o600)
    token_file.write_text(TOKEN, encoding="ascii")
    server = make_server(
        server__tcp="127.0.0.1:0",
        server__token_file=str(token_file),
        server__tls_cert=str(identity.cert),
        server__tls_key=str(identity.key),
        server__tls_client_ca=str(ours.cert),
    ).start()
    target = f"localhost:{port_of(server)}"

    def credentials(of: Identity | None) -> grpc.ChannelCredentials:
        pair = (None, None) if of is None else (of.key.read_bytes(), of.cert.read_bytes())
        return grpc.ssl_channel_credentials(ours.cert.read_bytes(), *pair)

    known = server.connect(target, credentials(client))
    assert known.admin.GetServerInfo(INFO, metadata=bearer(TOKEN), timeout=20).contract == "clag.v1"
    with refused(grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED"):
        known.admin.GetServerInfo(INFO, timeout=20)
    for outsider in (None, stranger):
        with refused(grpc.StatusCode.UNAVAILABLE):
            server.connect(target, credentials(outsider)).admin.GetServerInfo(
                INFO, metadata=bearer(TOKEN), timeout=5
            )
    with refused(grpc.StatusCode.UNAVAILABLE):
        server.connect(target).admin.GetServerInfo(INFO, metadata=bearer(TOKEN), timeout=5)


@pytest.mark.parametrize("what", ["data", "socket"])
def test_a_directory_that_others_can_write_to_stops_the_start(
    make_server: ServerMaker, tmp_path: Path, what: str
) -> None:
    open_dir = tmp_path / "o"
    open_dir.mkdir()
    open_dir.chmod(0o777)
    server = (
        make_server(storage__data_dir=str(open_dir))
        if what == "data"
        else make_server(server__socket=str(open_dir / "s"))
    ).spawn()
    assert server.wait() == 2
    assert f"the directory {open_dir} is writable for others" in server.log
