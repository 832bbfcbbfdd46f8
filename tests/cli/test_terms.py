"""The contract's names and rules in the terms of the command line."""

from __future__ import annotations

import re
from pathlib import Path

from clag_client import FieldViolation

from clag_server.cli.terms import key_of, retold
from clag_server.contract.patterns import in_words

PROTO = Path(__file__).parents[2] / "proto"


def test_every_pattern_of_the_contract_is_told_in_words() -> None:
    sources = "".join(path.read_text("utf-8") for path in PROTO.rglob("*.proto"))
    patterns = set(re.findall(r'pattern\s*[:=]\s*"([^"]*)"', sources))
    assert patterns
    for pattern in patterns:
        assert in_words(f"does not match regex pattern `{pattern}`").startswith("must be ")


def test_an_unknown_pattern_stays_as_the_server_says_it() -> None:
    told = "does not match regex pattern `^x$`"
    assert in_words(told) == told


def test_fields_of_a_memory_have_the_names_of_the_line() -> None:
    paths = ("memory_id", "session_id", "event_time", "expire_time.nanos", "tags[2]", 'attributes["memory_id"]', "")
    assert [key_of(path) for path in paths] == [
        "id",
        "session",
        "time",
        "expires.nanos",
        "tags[2]",
        'attributes["memory_id"]',
        "",
    ]


def test_a_refusal_names_flags_and_no_field_twice() -> None:
    rule = "does not match regex pattern `^[a-z0-9][a-z0-9-]{0,62}$`"
    told = "--namespace: must be 1 to 63 of a-z 0-9 and -, the first no -"
    one = FieldViolation("open.namespace", rule)
    assert retold(f"open.namespace: {rule}", [one]) == told
    assert retold("wrong", [one]) == f"wrong; {told}"
    assert retold("", [one]) == told
