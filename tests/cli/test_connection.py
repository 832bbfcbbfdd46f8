"""Where the command line sends what: tokens, and what it says of servers that it cannot use."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from clag_client import AsyncClient, Tls

from clag_server.cli.connection import endpoint, talk
from clag_server.cli.errors import CliError, ExitCode
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
