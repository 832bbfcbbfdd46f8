"""`clag namespaces`, `operations`, `reindex`, `update` and `delete` against a real server with scripted models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import Ended, clag
from tests.support.process import ServerProcess

LINES = [
    {
        "id": "m1",
        "text": "The dock is in bay B3.",
        "session": "s1",
        "tags": ["dock"],
        "time": "2026-01-01T00:00:00Z",
    },
    {"id": "m2", "text": "Red pallet in aisle 7.", "session": "s1", "time": "2026-03-02T06:02:00Z"},
    {"id": "m3", "text": "The dock moved to bay B7.", "session": "s2", "time": "2026-03-03T00:00:00Z"},
]


class Cli:
    """`clag` with the shared server's socket; commands on memories get a namespace of the test's own."""

    def __init__(self, server: ServerProcess, namespace: str, home: Path) -> None:
        self.server, self.namespace, self.home = server, namespace, home

    def __call__(self, *arguments: str, stdin: str = "") -> Ended:
        return clag(*arguments, "--socket", str(self.server.socket), home=self.home, stdin=stdin)

    def here(self, *arguments: str, stdin: str = "") -> Ended:
        return self(*arguments, "--namespace", self.namespace, stdin=stdin)


@pytest.fixture
def cli(shared_server: ServerProcess, namespace: str, tmp_path: Path) -> Cli:
    return Cli(shared_server, namespace, tmp_path)


def fill(cli: Cli) -> None:
    lines = "".join(json.dumps(line) + "\n" for line in LINES)
    assert cli.here("ingest", "-", "--ack", "searchable", stdin=lines).code == 0


def test_a_namespace_is_created_shown_set_listed_and_deleted(cli: Cli) -> None:
    name = cli.namespace
    made = cli("namespaces", "create", name, "--purpose", "fetch crates", "--time-to-live", "30", "--json")
    assert made.document()["settings"]["default_time_to_live"] == 30 * 86_400
    changed = cli("namespaces", "set", name, "--time-to-live", "", "--auto-reorganize", "no", "--json").document()
    assert "default_time_to_live" not in changed["settings"]
    assert changed["settings"]["purpose"] == "fetch crates"
    assert changed["settings"]["auto_reorganize"] is False
    assert "fetch crates" in cli("namespaces", "show", name).out
    assert name in cli("namespaces", "list").out
    gone = cli("namespaces", "delete", name, "--yes")
    assert (gone.code, gone.out.strip()) == (0, f"{name}: deleted")
    missing = cli("namespaces", "show", name)
    assert missing.code == 1
    assert name in missing.error()


def test_a_deletion_that_is_not_confirmed_deletes_nothing(cli: Cli) -> None:
    fill(cli)
    refused = cli("namespaces", "delete", cli.namespace, stdin="n\n")
    assert refused.code != 0
    assert len(cli.here("memories", "--json").lines()) == 3


def test_an_index_is_rebuilt_and_the_operation_can_be_looked_at(cli: Cli) -> None:
    fill(cli)
    done = cli.here("reindex")
    assert (done.code, done.out.strip()) == (0, "3 memories in the index, embedded by scripted-embedder")
    listed = cli.here("operations", "--json").lines()
    assert [(one["kind"], one["state"]) for one in listed] == [
        ("OPERATION_KIND_REINDEX", "OPERATION_STATE_SUCCEEDED")
    ]
    shown = cli("operation", listed[0]["operation_id"], "--watch")
    assert shown.code == 0
    assert "3 memories" in shown.out


def test_embedding_again_with_a_model_that_the_server_does_not_run_says_how_to_start_it(cli: Cli) -> None:
    fill(cli)
    refused = cli.here("reindex", "--embedder", "other-model")
    assert refused.code == 4
    assert "--embedder other-model" in refused.error()


def test_an_update_changes_what_is_given_and_nothing_else(cli: Cli) -> None:
    fill(cli)
    done = cli.here("update", "m1", "--text", "The dock is in bay C1.", "--attribute", "shelf=4", "--json")
    memory = done.document()
    assert memory["text"] == "The dock is in bay C1."
    assert memory["tags"] == ["dock"]
    assert memory["attributes"]["shelf"]["string_value"] == "4"
    assert cli.here("update", "m1", "--no-tags", "--json").document()["tags"] == []
    assert cli.here("update", "m1").code == 2


def test_memories_are_deleted_by_what_they_have_in_common(cli: Cli) -> None:
    fill(cli)
    assert cli.here("delete", "--session", "s1", "--before", "2026-02-01", "--dry-run").out.strip() == "1 match"
    assert cli.here("delete", "--session", "s1", "--since", "2026-02-01").out.strip() == "1 deleted"
    assert [one["memory_id"] for one in cli.here("memories", "--json").lines()] == ["m1", "m3"]
    assert cli.here("delete").code == 2
    assert cli.here("delete", "m1", "--session", "s1").code == 2
    assert len(cli.here("memories", "--json").lines()) == 2
