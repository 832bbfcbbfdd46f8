"""`clag reorganize` shows a plan as lines that say what goes and what comes, and applies it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import Ended, clag
from tests.support.process import ServerProcess

TOPICS = {
    "dock": "charging dock needs another yellow cable soon",
    "door": "northern door opens slowly every winter morning",
}


class Cli:
    """`clag` on the shared server."""

    def __init__(self, server: ServerProcess, namespace: str, home: Path) -> None:
        self.namespace = namespace
        self._server, self._home = server, home

    def __call__(self, *arguments: str, stdin: str = "") -> Ended:
        return clag(*arguments, "--socket", self._server.socket, home=self._home, stdin=stdin)

    def clusters(self) -> dict[str, int]:
        listed = self("clusters", "-n", self.namespace, "--json").lines()
        return {one["cluster_id"]: one["memory_count"] for one in listed}


@pytest.fixture
def cli(shared_server: ServerProcess, namespace: str, tmp_path: Path) -> Cli:
    """All memories of two topics in one cluster."""
    made = Cli(shared_server, namespace, tmp_path)
    lines = [
        {"id": f"{topic}-{session}-{i}", "session": f"{topic}-{session}", "text": f"{text} part {i}"}
        for topic, text in TOPICS.items()
        for session in range(4)
        for i in range(3)
    ]
    given = "".join(json.dumps(line) + "\n" for line in lines)
    assert made("ingest", "-", "-n", namespace, "--ack", "organized", stdin=given).code == 0
    first, *others = sorted(made.clusters())
    assert made("clusters", "merge", "-n", namespace, first, *others).code == 0
    return made


def test_a_plan_is_shown_line_by_line_and_then_applied(cli: Cli) -> None:
    (only,) = cli.clusters()
    planned = cli("reorganize", cli.namespace, "--dry-run")
    assert planned.code == 0
    lines = planned.out.splitlines()
    assert lines[0] == "12 memories would move; 1 clusters before, 2 after; planned by likeness"
    assert any(line.startswith("split: it holds two parts that are apart") for line in lines)
    assert any(line.startswith(f'  - {only} "') and line.endswith("(24 memories)") for line in lines)
    assert any(line.startswith('  + new "') and line.endswith("(12 memories)") for line in lines)
    assert lines[-1] == "nothing was changed (--dry-run)"
    assert list(cli.clusters()) == [only]
    done = cli("reorganize", cli.namespace, "--cluster", only)
    assert done.out.startswith("12 memories moved; 1 clusters before, 2 after")
    assert sorted(cli.clusters().values()) == [12, 12]
    again = cli("reorganize", cli.namespace)
    assert again.out.strip() == "nothing to do: 2 clusters stay as they are"
    shown = cli("operations", "-n", cli.namespace, "--json").lines()[1]
    assert "12 memories moved, 1 clusters before and 2 after" in cli("operation", shown["operation_id"]).out


def test_the_operation_is_told_as_json(cli: Cli) -> None:
    ended = cli("reorganize", cli.namespace, "--dry-run", "--json", "--target", "2").document()
    assert ended["kind"] == "OPERATION_KIND_REORGANIZE"
    assert ended["reorganize"]["dry_run"] is True
    assert "PLAN_STEP_KIND_SPLIT" in {step["kind"] for step in ended["reorganize"]["steps"]}
    detached = cli("reorganize", cli.namespace, "--detach", "--json").document()
    assert cli("operation", detached["operation_id"], "--watch").code == 0


def test_a_number_that_is_not_reached_is_told_with_the_reason(cli: Cli) -> None:
    told = cli("reorganize", cli.namespace, "--target", "9", "--dry-run").out.splitlines()
    (line,) = [line for line in told if line.startswith("target: ")]
    assert line.startswith("target: it leads to 2 clusters, not 9: what is left in each is one episode")


def test_a_cluster_that_is_asked_for_and_may_not_be_touched_is_said_to_be_so(cli: Cli) -> None:
    (only,) = cli.clusters()
    cli("clusters", "pin", "-n", cli.namespace, only)
    pinned = cli("reorganize", cli.namespace, "--cluster", only)
    assert (pinned.code, f"{only} " in pinned.out, "is pinned and stays as it is" in pinned.out) == (0, True, True)
    cli("clusters", "unpin", "-n", cli.namespace, only)
    cli("clusters", "archive", "-n", cli.namespace, only)
    assert "is archived and stays as it is" in cli("reorganize", cli.namespace, "--cluster", only).out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["", "--dry-run"], "NAMESPACE: must be 1 to 63 of a-z 0-9 and -"),
        (["Robots"], "NAMESPACE: must be 1 to 63 of a-z 0-9 and -"),
        (["robots", "--cluster", "c 1"], '--cluster "c 1": must be 1 to 128 of A-Z a-z 0-9'),
        (["robots", "--cluster", "c1", "--cluster", ""], '--cluster "": must be 1 to 128 of A-Z a-z 0-9'),
        (["robots", "--cluster", "c1", "--cluster", "c1"], "--cluster: "),
        (["robots", "--target", "5000"], "--target"),
        (["robots", "--target", "few"], "--target"),
    ],
)
def test_what_is_wrong_is_told_with_the_argument_or_flag_that_was_typed(
    shared_server: ServerProcess, namespace: str, tmp_path: Path, arguments: list[str], told: str
) -> None:
    given = [namespace if one == "robots" else one for one in arguments]
    clag("namespaces", "create", namespace, "--socket", shared_server.socket, home=tmp_path)
    refused = clag("reorganize", *given, "--socket", shared_server.socket, home=tmp_path)
    assert refused.code == 2
    assert told in refused.error()
    assert "regex" not in refused.error()


def test_a_cluster_or_namespace_that_is_not_there_is_said_to_be_so(cli: Cli) -> None:
    refused = cli("reorganize", cli.namespace, "--cluster", "c999")
    assert (refused.code, "c999" in refused.error()) == (1, True)
    assert cli("reorganize", "nobody-here").code == 1
