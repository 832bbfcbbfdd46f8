"""Which addresses of a Milvus server are taken, and that a password never stays in one."""

from __future__ import annotations

from pathlib import Path

import pytest

from clag_server.settings import SettingsError, load
from clag_server.vectors.address import MilvusAddressError, MilvusServer, check_uri, milvus_server
from clag_server.vectors.partitions import collection_name, owner_mark


@pytest.mark.parametrize(
    "uri", ["https://milvus.example:19530", "http://127.0.0.1:19530", "http://[::1]:19530", "unix:/run/milvus.sock"]
)
def test_a_token_goes_over_tls_or_stays_on_this_machine(uri: str) -> None:
    check_uri(uri, token=True, ca_file=uri.startswith("https"))


@pytest.mark.parametrize(
    ("uri", "token", "ca_file", "says"),
    [
        ("milvus.example:19530", False, False, "must be like https"),
        ("tcp://milvus.example", False, False, "must be like https"),
        ("https://milvus.example:port", False, False, "not an address"),
        ("https://milvus.example/?db=1", False, False, "query"),
        ("unix:milvus.sock", False, False, "whole path"),
        ("unix:/run/milvus.sock", False, True, "ca_file needs an https address"),
        ("http://milvus.example:19530", False, True, "ca_file needs an https address"),
        ("http://milvus.example:19530", True, False, "in the clear"),
        ("http://me:secret@milvus.example:19530", False, False, "in the clear"),
        ("https://me:secret@milvus.example:19530", True, False, "leave one out"),
    ],
)
def test_addresses_that_cannot_work_or_would_leak_are_refused(
    uri: str, token: bool, ca_file: bool, says: str
) -> None:
    with pytest.raises(MilvusAddressError, match=says) as refused:
        check_uri(uri, token=token, ca_file=ca_file)
    assert "secret" not in str(refused.value)


def test_a_password_in_the_address_becomes_the_token() -> None:
    server = milvus_server("https://me:se%40cret@milvus.example:19530", "", None)
    assert server == MilvusServer("https://milvus.example:19530", "me:se@cret")
    assert "se@cret" not in repr(server)


def test_the_settings_of_the_index_are_checked_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="in the clear"):
        load({"index.uri": "http://milvus.example:19530", "index.token_file": str(tmp_path / "token")})
    with pytest.raises(SettingsError, match=r"need index\.uri"):
        load({"index.ca_file": str(tmp_path / "ca.pem")})
    with pytest.raises(SettingsError, match=r"index\.verify"):
        load({"index.verify": "sometimes"})


def test_collections_of_two_catalogs_on_one_server_never_have_the_same_name() -> None:
    mine, other = owner_mark("0123456789abcdef"), owner_mark("fedcba9876543210")
    assert collection_name(7, mine) == "clag_0123456789ab_7"
    assert collection_name(7, other) != collection_name(7, mine)
    assert collection_name(7) == "clag_7"


@pytest.mark.parametrize("catalog_id", ["", "0123", "0123456789AB", "../../../etc", "0123456789ab; drop"])
def test_only_hexadecimal_names_of_catalogs_become_part_of_a_collection(catalog_id: str) -> None:
    with pytest.raises(ValueError, match="hexadecimal"):
        owner_mark(catalog_id)
