"""Where the command line sends what: tokens, and what it says of servers that it cannot use."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from clag.v1 import types_pb2
from clag_client import AsyncClient, Tls

from clag_server.cli.connection import endpoint, talk
from clag_server.cli.errors import CliError, ExitCode, exit_code_of
from clag_server.cli.options import ConnectionFlags

MADE, NAMED, GIVEN = "made-by-the-server-0", "named-in-the-settings", "given-with-the-flag-0"


def secret(path: Path, token: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(token, encoding="ascii")
    path.chmod(0o600)
    return path


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Settings of a server that made a token."""
    secret(tmp_path / "data" / "token", MADE)
    file = tmp_path / "clag.toml"
    file.write_text(f'[storage]\ndata_dir = "{tmp_path / "data"}"\n', encoding="utf-8")
    return file


def flags(
    config: Path, address: str, *, token_file: Path | None = None, tls_ca: str | None = None
) -> ConnectionFlags:
    return ConnectionFlags(None, address, token_file, tls_ca, 30.0, config)


def test_the_local_servers_own_token_goes_to_this_machine_only(config: Path) -> None:
    for address in ("127.0.0.1:7077", "localhost:7077", "[::1]:7077"):
        assert endpoint(flags(config, address)).token == MADE
    for address in ("198.51.100.7:7077", "db.example:7077"):
        assert endpoint(flags(config, address)).token == ""
        assert endpoint(flags(config, address, tls_ca="system")).token == ""


def test_the_token_of_the_settings_goes_to_this_machine_only(config: Path, tmp_path: Path) -> None:
    named = secret(tmp_path / "named", NAMED)
    with config.open("a", encoding="utf-8") as more:
        more.write(f'[server]\ntoken_file = "{named}"\n')
    assert endpoint(flags(config, "127.0.0.1:7077")).token == NAMED
    assert endpoint(flags(config, "db.example:7077")).token == ""


def test_a_token_of_the_flags_goes_to_another_machine_over_tls_and_never_in_plain_text(
    config: Path, tmp_path: Path
) -> None:
    given = secret(tmp_path / "given", GIVEN)
    there = endpoint(flags(config, "db.example:7077", token_file=given, tls_ca="system"))
    assert (there.token, there.tls) == (GIVEN, Tls())
    assert endpoint(flags(config, "127.0.0.1:7077", token_file=given)).token == GIVEN
    with pytest.raises(CliError, match=r"plain text.*--tls-ca") as caught:
        endpoint(flags(config, "db.example:7077", token_file=given))
    assert caught.value.code == ExitCode.USAGE
    assert GIVEN not in caught.value.message


def test_a_grpc_server_that_is_not_clag_is_called_that(tmp_path: Path) -> None:
    other = grpc.server(ThreadPoolExecutor(1))
    other.add_insecure_port(f"unix:{tmp_path}/s")
    other.start()

    async def work(client: AsyncClient) -> None:
        await client.server_info()

    try:
        with pytest.raises(CliError, match="is not a CLAG server") as caught:
            talk(ConnectionFlags(tmp_path / "s", None, None, None, 30.0, None), work)
    finally:
        other.stop(None).wait()
    assert caught.value.code == ExitCode.UNREACHABLE


@pytest.mark.parametrize(
    ("status", "reason", "code"),
    [
        ("NOT_FOUND", "ERROR_REASON_NAMESPACE_DELETED", ExitCode.PARTIAL),
        ("INVALID_ARGUMENT", "ERROR_REASON_INVALID_FIELD", ExitCode.USAGE),
        ("RESOURCE_EXHAUSTED", "ERROR_REASON_MESSAGE_TOO_LARGE", ExitCode.USAGE),
        ("ABORTED", "ERROR_REASON_ETAG_MISMATCH", ExitCode.REFUSED),
        ("ALREADY_EXISTS", "ERROR_REASON_ALREADY_EXISTS", ExitCode.REFUSED),
        ("FAILED_PRECONDITION", "ERROR_REASON_MODEL_MISMATCH", ExitCode.REFUSED),
        ("FAILED_PRECONDITION", "ERROR_REASON_CLUSTER_STATE", ExitCode.REFUSED),
        ("RESOURCE_EXHAUSTED", "ERROR_REASON_NAMESPACE_LIMIT", ExitCode.REFUSED),
        ("UNAVAILABLE", "ERROR_REASON_DRAINING", ExitCode.UNREACHABLE),
        ("FAILED_PRECONDITION", "ERROR_REASON_OWNERSHIP", ExitCode.SERVER),
        ("UNAVAILABLE", "ERROR_REASON_STORAGE_DEGRADED", ExitCode.SERVER),
        ("RESOURCE_EXHAUSTED", "ERROR_REASON_OVERLOADED", ExitCode.SERVER),
        ("INTERNAL", "ERROR_REASON_INTERNAL", ExitCode.SERVER),
        ("DEADLINE_EXCEEDED", "ERROR_REASON_UNSPECIFIED", ExitCode.SERVER),
    ],
)
def test_scripts_tell_a_refusal_from_a_fault_of_the_server(status: str, reason: str, code: ExitCode) -> None:
    assert types_pb2.ErrorReason.Value(reason) >= 0
    assert status in grpc.StatusCode.__members__
    assert exit_code_of(status, reason) is code
