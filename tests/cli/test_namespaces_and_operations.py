"""`clag namespaces`, `operations`, `reindex`, `update` and `delete` against a real server with scripted models."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.command import COMMAND, TIMEOUT_S, Ended, clag, environment
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


def on_a_terminal(cli: Cli, *arguments: str, typed: str) -> tuple[int, str]:
    """Run a command whose standard input and error are a terminal; returns its exit code and what it showed."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, *arguments, "--socket", str(cli.server.socket)],
        stdin=theirs,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env=environment(cli.home),
    ) as running:
        os.close(theirs)
        os.write(ours, typed.encode())
        shown = bytearray()
        with suppress(OSError):  # what a terminal answers whose other end is closed
            while part := os.read(ours, 4096):
                shown += part
        code = running.wait(TIMEOUT_S)
    os.close(ours)
    return code, shown.decode()


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


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--archive-after", "0"], "--archive-after: 0 days is out of range: at least an hour"),
        (["--archive-after", "-1"], "--archive-after: -1 days is out of range"),
        (["--archive-after", "nan"], "--archive-after: nan days is out of range"),
        (["--archive-after", "1e9"], "at most 36525 days"),
        (["--archive-after", "soon"], '--archive-after: "soon" is not a number of days'),
        (["--time-to-live", "0"], "--time-to-live: 0 days is out of range: at least a second"),
        (["--purpose", "x" * 1025], "--purpose: "),
        (["--routing-unit", "cluster"], "--routing-unit"),
        ([], "say what to set"),
    ],
)
def test_a_setting_that_cannot_be_is_told_with_its_flag_and_what_is_allowed(
    cli: Cli, arguments: list[str], told: str
) -> None:
    assert cli("namespaces", "create", cli.namespace).code == 0
    refused = cli("namespaces", "set", cli.namespace, *arguments)
    assert refused.code == 2
    assert told in refused.error()


@pytest.mark.parametrize("verb", ["create", "show", "delete"])
def test_a_name_that_is_none_is_told_as_the_argument_that_it_is(cli: Cli, verb: str) -> None:
    for name in ("", "Robots", "a_b"):
        refused = cli("namespaces", verb, name)
        assert refused.code == 2
        assert "NAMESPACE: must be 1 to 63 of a-z 0-9 and -" in refused.error()


def test_a_deletion_that_is_not_confirmed_deletes_nothing(cli: Cli) -> None:
    fill(cli)
    assert "--yes" in (unasked := cli("namespaces", "delete", cli.namespace, stdin="y\n")).error()
    assert unasked.code == 2
    code, told = on_a_terminal(cli, "namespaces", "delete", cli.namespace, typed="n\n")
    assert (code, cli.namespace in told) == (130, True)
    assert len(cli.here("memories", "--json").lines()) == 3
    assert on_a_terminal(cli, "namespaces", "delete", cli.namespace, typed="y\n")[0] == 0
    assert cli("namespaces", "show", cli.namespace).code == 1


def test_deleting_a_namespace_that_is_not_there_says_so_before_it_asks(cli: Cli) -> None:
    missing = cli("namespaces", "delete", cli.namespace)
    assert missing.code == 1
    assert "not found" in missing.error()


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
    assert refused.code == 6
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


def test_what_is_refused_as_things_are_is_not_a_fault_of_the_server(cli: Cli) -> None:
    fill(cli)
    etag = cli.here("memory", "m2", "--json").document()["etag"]
    assert cli.here("update", "m2", "--task", "patrol", "--json").code == 0
    changed = cli.here("update", "m2", "--task", "rest", "--etag", etag)
    assert (changed.code, "etag" in changed.error()) == (6, True)
    there = cli("namespaces", "create", cli.namespace)
    assert (there.code, "exists already" in there.error()) == (6, True)


def test_every_flag_of_an_update_sets_its_field_and_an_empty_value_clears_it(cli: Cli) -> None:
    fill(cli)
    made = cli.here(
        "update", "m1", "--kind", "tool_output", "--speaker", "scout", "--task", "patrol", "--importance", "0.25",
        "--time", "2026-01-02", "--expires", "2099-01-01T12:00:00+02:00", "--session", "s9", "--tag", "a", "--tag",
        "b", "--attribute", "shelf=4", "--attribute", "empty=", "--json",
    ).document()  # fmt: skip
    assert made["kind"] == "MEMORY_KIND_TOOL_OUTPUT"
    assert (made["speaker"], made["task"], made["session_id"]) == ("scout", "patrol", "s9")
    assert (made["importance"], made["tags"]) == (0.25, ["a", "b"])
    assert (made["event_time"], made["expire_time"]) == ("2026-01-02T00:00:00Z", "2099-01-01T10:00:00Z")
    assert {key: value["string_value"] for key, value in made["attributes"].items()} == {"shelf": "4", "empty": ""}
    cleared = cli.here(
        "update", "m1", "--speaker", "", "--session", "", "--time", "", "--expires", "", "--remove-attribute",
        "shelf", "--remove-attribute", "unknown", "--json",
    ).document()  # fmt: skip
    assert (cleared["speaker"], cleared["session_id"], cleared["task"]) == ("", "", "patrol")
    assert cleared["event_time"] == cleared["create_time"]
    assert "expire_time" not in cleared
    assert list(cleared["attributes"]) == ["empty"]


def test_a_value_that_an_update_cannot_take_is_told_with_its_flag(cli: Cli) -> None:
    fill(cli)
    refused = cli.here("update", "m1", "--expires", "2999-01-01")
    assert refused.code == 2
    assert "--expires: " in refused.error()


@pytest.mark.parametrize(
    "flags",
    [
        ["--tag", "a", "--no-tags"],
        ["--attribute", "shelf"],
        ["--attribute", "shelf=4", "--remove-attribute", "shelf"],
        ["--kind", "dream"],
        ["--time", "yesterday"],
    ],
)
def test_flags_of_an_update_that_do_not_go_together_are_refused(tmp_path: Path, flags: list[str]) -> None:
    refused = clag("update", "m1", *flags, home=tmp_path)
    assert (refused.code, refused.out) == (2, "")


def test_memories_are_deleted_by_what_they_have_in_common(cli: Cli) -> None:
    fill(cli)
    assert cli.here("delete", "--session", "s1", "--before", "2026-02-01", "--dry-run").out.strip() == "1 match"
    done = cli.here("delete", "--session", "s1", "--since", "2026-02-01", "--json").document()
    assert done == {"matched": 1, "deleted": 1, "complete": True}
    assert [one["memory_id"] for one in cli.here("memories", "--json").lines()] == ["m1", "m3"]
    assert cli.here("delete").code == 2
    both = cli.here("delete", "m1", "--session", "s1")
    assert (both.code, "both ids and flags" in both.error()) == (2, True)
    assert len(cli.here("memories", "--json").lines()) == 2
    assert cli.here("delete", "--session", "s1").out.strip() == "1 deleted"
