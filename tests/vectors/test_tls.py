"""An encrypted connection to a Milvus server: the certificate must come from who the settings name."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from milvus_lite.adapter.grpc.servicer import MilvusServicer
from milvus_lite.db import MilvusLite
from pymilvus.grpc_gen import milvus_pb2_grpc

from clag_server.vectors.address import MilvusServer
from clag_server.vectors.errors import BackendAwayError
from clag_server.vectors.milvus import Flavor, MilvusConnection
from tests.server.test_security import Authority


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """An address that speaks Milvus over TLS, and the certificate of who signed its."""
    authority = Authority(tmp_path, "authority")
    identity = authority.issue("milvus")
    server = grpc.server(ThreadPoolExecutor(2))
    store = MilvusLite(str(tmp_path / "lite"))
    milvus_pb2_grpc.add_MilvusServiceServicer_to_server(MilvusServicer(store), server)
    credentials = grpc.ssl_server_credentials([(identity.key.read_bytes(), identity.cert.read_bytes())])
    port = server.add_secure_port("localhost:0", credentials)
    server.start()
    yield f"https://localhost:{port}", authority.cert
    server.stop(None).wait()
    store.close()


def test_a_server_with_a_certificate_of_a_private_authority_is_used(encrypted: tuple[str, Path]) -> None:
    uri, authority = encrypted
    connection = _connection(MilvusServer(uri, ca_file=authority))
    connection.connect()
    connection.create(1, 8, "stamp")
    info = connection.describe(1)
    connection.close()
    assert info is not None
    assert (info.dim, info.stamp) == (8, "stamp")


def test_a_certificate_of_somebody_else_is_refused(encrypted: tuple[str, Path], tmp_path: Path) -> None:
    uri, _ = encrypted
    for ca_file in (None, Authority(tmp_path, "somebody").cert):
        with pytest.raises(BackendAwayError, match=r"connect to https://localhost.*UNAVAILABLE"):
            _connection(MilvusServer(uri, ca_file=ca_file)).connect()


def _connection(server: MilvusServer) -> MilvusConnection:
    return MilvusConnection(server, Flavor.LITE, owner="0123456789ab", read_timeout_s=5, write_timeout_s=30)
