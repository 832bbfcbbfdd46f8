"""`clag clusters` and its edits against a real server with scripted models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import Ended, clag
from tests.support.process import ServerProcess

TOPICS = {
    "dock": "the charging dock needs a new cable",
    "gripper": "gripper finger slipped while lifting glass",
    "door": "northern door opens slowly every winter morning",
}


class Cli:
    """`clag` on the shared server, in a namespace of the test's own."""

    def __init__(self, server: ServerProcess, namespace: str, home: Path) -> None:
        self.namespace = namespace
        self._server, self._home = server, home

    def __call__(self, *arguments: str, stdin: str = "") -> Ended:
        return clag(*arguments, "--socket", self._server.socket, "-n", self.namespace, home=self._home, stdin=stdin)

    def counts(self, *flags: str) -> dict[str, int]:
        return {one["cluster_id"]: one["memory_count"] for one in self("clusters", "--json", *flags).lines()}


@pytest.fixture
def cli(shared_server: ServerProcess, namespace: str, tmp_path: Path) -> Cli:
    return Cli(shared_server, namespace, tmp_path)


@pytest.fixture
def homes(cli: Cli) -> dict[str, str]:
    """Three sessions of three topics, each in a cluster of its own: topic -> cluster id."""
    lines = [
        {"id": f"{topic}-{i}", "session": topic, "text": f"{text} number {i}"}
        for topic, text in TOPICS.items()
        for i in range(4)
    ]
    given = "".join(json.dumps(line) + "\n" for line in lines)
    assert cli("ingest", "-", "--ack", "organized", stdin=given).code == 0
    found = {topic: cli("memory", f"{topic}-0", "--json").document()["cluster_id"] for topic in TOPICS}
    assert len(set(found.values())) == 3
    return found


def test_clusters_are_merged_split_and_memories_moved(cli: Cli, homes: dict[str, str]) -> None:
    dock, gripper, door = homes.values()
    before = cli.counts()
    planned = cli("clusters", "merge", dock, gripper, door, "--dry-run")
    assert (planned.code, planned.out.startswith("would do: 8 memories moved")) == (0, True)
    assert cli.counts() == before
    merged = cli("clusters", "merge", dock, gripper, door, "--json").document()
    assert (merged["moved"], merged["cluster"]["cluster_id"]) == (8, dock)
    assert cli.counts() == {dock: 12}
    split = cli("clusters", "split", dock, "--parts", "3", "--json").document()["clusters"]
    assert [part["memory_count"] for part in split] == [4, 4, 4]
    target = split[1]["cluster_id"]
    stay = {one["memory_id"] for one in cli("memories", "--json", "--cluster", dock).lines()}
    moved = cli("clusters", "move", target, *sorted(stay)[:2])
    assert (moved.code, moved.out.strip()) == (0, f"2 memories moved to {target}")
    assert cli.counts() == {dock: 2, target: 6, split[2]["cluster_id"]: 4}
    events = [one["event"] for one in cli("clusters", "history", dock, "--json").lines()]
    assert {"CLUSTER_EVENT_MERGED", "CLUSTER_EVENT_SPLIT", "CLUSTER_EVENT_MOVED"} <= set(events)
    assert "merged into" in cli("clusters", "history", gripper).out


def test_clusters_are_renamed_pinned_archived_and_restored(cli: Cli, homes: dict[str, str]) -> None:
    dock = homes["dock"]
    assert cli("clusters", "rename", dock, "Docks").out.strip() == f'{dock} "Docks": renamed'
    assert cli("clusters", "pin", dock, "--json").document()["cluster"]["pinned"] is True
    assert cli("clusters", "unpin", dock, "--json").document()["cluster"]["pinned"] is False
    assert cli("clusters", "archive", dock, "--dry-run").code == 0
    assert dock in cli.counts()
    assert cli("clusters", "archive", dock).out.strip() == f'{dock} "Docks": archived'
    assert dock not in cli.counts()
    assert dock in cli.counts("--archived")
    refused = cli("clusters", "move", dock, "door-0")
    assert (refused.code, "is archived" in refused.error()) == (6, True)
    assert cli("clusters", "restore", dock).code == 0
    assert dock in cli.counts()


def test_edits_that_cannot_be_are_refused_in_the_callers_words(cli: Cli, homes: dict[str, str]) -> None:
    dock, before = homes["dock"], cli.counts()
    itself = cli("clusters", "merge", dock, dock)
    assert (itself.code, "must not name the target" in itself.error()) == (2, True)
    assert cli("clusters", "merge", dock, "c9999").code == 1
    stale = cli("clusters", "rename", dock, "Docks", "--etag", "1")
    assert (stale.code, "etag" in stale.error()) == (6, True)
    assert cli("clusters", "split", dock, "--parts", "1").code == 2
    assert cli("clusters", "merge", dock).code == 2
    assert cli.counts() == before


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["merge", "", "c1"], "TARGET: must be 1 to 128 of A-Z a-z 0-9"),
        (["merge", "c1", "c2", "c 3"], 'SOURCE "c 3": must be 1 to 128 of A-Z a-z 0-9'),
        (["move", "c1", "a b"], 'MEMORY_ID "a b": must be 1 to 128 of A-Z a-z 0-9'),
        (["split", "c 1"], "CLUSTER_ID: must be 1 to 128 of A-Z a-z 0-9"),
        (["archive", ""], "CLUSTER_ID: must be"),
        (["rename", "c1", "x" * 1000], "TITLE: "),
        (["history", "c 1"], "CLUSTER_ID: must be"),
    ],
)
def test_an_id_that_cannot_be_is_told_as_the_argument_that_was_typed(
    cli: Cli, arguments: list[str], told: str
) -> None:
    refused = cli("clusters", *arguments)
    assert refused.code == 2
    assert told in refused.error()
    assert "regex" not in refused.error()


def test_flags_of_the_list_before_a_subcommand_are_refused_and_not_lost(tmp_path: Path) -> None:
    refused = clag("clusters", "--namespace", "robots", "archive", "c1", home=tmp_path)
    assert (refused.code, "put --namespace behind archive" in refused.error()) == (2, True)
