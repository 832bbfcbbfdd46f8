"""`clag probe` against a real server with scripted models: what a model earned, in a table, a sentence and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import Ended, clag
from tests.support.process import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("probed")
    (root / "script.json").write_text(json.dumps({"choose": "first"}), encoding="utf-8")
    with ServerProcess(root) as running:
        yield running.start()


def run(server: ServerProcess, home: Path, *arguments: str) -> Ended:
    return clag(*arguments, "--socket", str(server.socket), home=home)


def test_a_probe_is_asked_for_followed_and_shown(server: ServerProcess, tmp_path: Path) -> None:
    unknown = run(server, tmp_path, "probe", "--last")
    assert unknown.code == 1
    assert "clag probe" in unknown.error()
    (line,) = [one for one in run(server, tmp_path, "status").out.splitlines() if one.startswith("SLM probe")]
    assert line.split() == ["SLM", "probe", "not", "yet"]

    shown = run(server, tmp_path, "probe")
    assert shown.code == 0, shown.err
    lines = shown.out.splitlines()
    assert lines[0].startswith("scripted-slm, ")
    forms = {line.split()[1]: line for line in lines if line.startswith((" by ", "by "))}
    assert set(forms) == {"likelihood", "letter"}
    assert "(best)" in forms["likelihood"]
    (routing,) = [line.split() for line in lines if line.split()[:1] == ["routing"]]
    assert routing == ["routing", "60", "20%", "12%", "to", "32%", routing[6], "100%", "1.00", "0"]
    assert "This model organizes nothing." in shown.out
    assert "vectors decide where memories go" in shown.out

    last = run(server, tmp_path, "probe", "--last", "--json")
    assert last.code == 0
    assert [one["skill"] for one in last.document()["skills"]] == [
        "PROBE_SKILL_ROUTING",
        "PROBE_SKILL_SELECTION",
        "PROBE_SKILL_ANNOTATION",
        "PROBE_SKILL_EVOLUTION",
    ]
    assert "trusted with nothing (since 2" in run(server, tmp_path, "status").out


def test_a_probe_that_is_begun_in_the_background_is_an_operation(server: ServerProcess, tmp_path: Path) -> None:
    begun = run(server, tmp_path, "probe", "--detach", "--json")
    assert begun.code == 0, begun.err
    operation = begun.document()["operation_id"]
    ended = run(server, tmp_path, "operation", operation, "--watch")
    assert ended.code == 0, ended.err
    assert "scripted-slm, trusted with nothing" in ended.out


def test_a_server_without_a_model_says_so_in_place_of_what_was_probed(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, settings={"models.slm": ""}) as running:
        server = running.start()
        for arguments in (["probe", "--last"], ["probe"]):
            told = run(server, tmp_path, *arguments)
            assert told.code != 0
            assert "no language model" in told.error()
            assert "models.slm" in told.error()


def test_flags_that_contradict_each_other_are_a_usage_error(server: ServerProcess, tmp_path: Path) -> None:
    refused = run(server, tmp_path, "probe", "--last", "--detach")
    assert refused.code == 2
    assert "--detach" in refused.error()
