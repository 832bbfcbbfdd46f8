"""Whole runs, as a user starts them, against a real server with scripted models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from clag_eval.cli import main
from tests.eval import samples
from tests.support.process import ServerProcess

_ALL = "rag,bm25,hybrid,window,full,released,global,clag,tests.eval.adapter:WordSystem"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return samples.lines(tmp_path_factory.mktemp("eval") / "harbour")


def _server(server: ServerProcess) -> tuple[str, str]:
    return ("--server", f"unix:{server.socket}")


@pytest.fixture(scope="module")
def finished(folder: Path, shared_server: ServerProcess) -> dict[str, Any]:
    """The result of one run with every method that one server can serve."""
    pytest.importorskip("bm25s", reason="the extra `eval` is not installed")
    target = folder / "run.json"
    arguments = ["run", "--data", f"jsonl:{folder}", "--methods", f"{_ALL},cosine", "--json", str(target)]
    assert main([*arguments, *_server(shared_server)]) == 0
    made: dict[str, Any] = json.loads(target.read_text("utf-8"))
    return made


def _row(document: dict[str, Any], method: str) -> dict[str, Any]:
    (row,) = (row for row in document["summary"] if row["method"] == method)
    return dict(row)


def test_the_summary_has_a_row_for_each_method_in_the_order_asked_for(finished: dict[str, Any]) -> None:
    asked = [*_ALL.split(",")[:-1], "words"]
    assert [row["method"] for row in finished["summary"]] == asked
    assert all({"recall@10", "ndcg@10", "search_space"} <= row.keys() for row in finished["summary"])


def test_every_question_is_asked_of_every_method(finished: dict[str, Any]) -> None:
    assert finished["run"]["questions"] == 4
    assert len(finished["rows"]) == 4 * len(finished["summary"])


def test_pools_of_six_memories_are_found_whole_by_what_ranks_all(finished: dict[str, Any]) -> None:
    for method in ("rag", "hybrid", "global", "clag", "full", "window"):
        assert _row(finished, method)["recall@10"] == 100.0, method


def test_words_find_what_shares_a_word_and_nothing_else(finished: dict[str, Any]) -> None:
    rows = [row for row in finished["rows"] if row["method"] == "bm25" and row["question"] == "q1"]
    assert [row["ranked"] for row in rows] == [["m0"]]


def test_what_one_server_cannot_show_is_left_out_with_the_reason(finished: dict[str, Any]) -> None:
    (note,) = finished["run"]["notes"]
    assert note == "cosine was left out: it needs a server with organize.strategy = cosine"


def test_contexts_stay_within_their_budgets(finished: dict[str, Any]) -> None:
    for row in finished["rows"]:
        assert all(row["tokens"][budget] <= int(budget) for budget in row["tokens"]), row["method"]


def test_only_calls_to_a_server_are_timed(finished: dict[str, Any]) -> None:
    assert _row(finished, "clag")["latency_p50_ms"] > 0
    assert _row(finished, "rag")["latency_p50_ms"] is None


def test_others_are_compared_with_hybrid_with_an_interval(finished: dict[str, Any]) -> None:
    gap = _row(finished, "clag")["recall@10_over_hybrid"]
    assert gap["low"] <= gap["mean"] <= gap["high"]
    assert "recall@10_over_hybrid" not in _row(finished, "hybrid")


def test_a_system_that_finds_what_it_was_not_given_ends_the_run_with_one_line(
    folder: Path, shared_server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    target = folder / "lies.json"
    arguments = ["run", "--data", f"jsonl:{folder}", "--methods", "tests.eval.adapter:LyingSystem"]
    assert main([*arguments, "--json", str(target), *_server(shared_server)]) == 1
    told = capsys.readouterr().err.splitlines()[-1]
    assert told == "clag-eval: words found 'm-unknown', which is no memory of p0"
    assert not target.exists()


def test_a_finished_pool_is_not_measured_again(
    folder: Path, shared_server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    target = folder / "resumed.json"
    arguments = ["run", "--data", f"jsonl:{folder}", "--json", str(target), *_server(shared_server)]
    lying = "window,tests.eval.adapter:LyingSystem"
    assert main([*arguments, "--methods", lying]) == 1
    assert (folder / "resumed.json.partial").exists()
    capsys.readouterr()
    assert main([*arguments, "--methods", "window"]) == 0
    assert "p0: window" not in capsys.readouterr().err
    assert not (folder / "resumed.json.partial").exists()
    assert json.loads(target.read_text("utf-8"))["summary"][0]["questions"] == 4


def test_a_report_has_the_tables_and_plots_of_a_result(finished: dict[str, Any], folder: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `eval` is not installed")
    page = folder / "page.md"
    assert main(["report", str(folder / "run.json"), "--markdown", str(page), "--plots", str(folder / "img")]) == 0
    text = page.read_text("utf-8")
    assert "| clag | 100.0 |" in text
    assert "](img/harbour-searched.svg)" in text
    assert {path.name for path in (folder / "img").iterdir()} == {
        f"harbour-{kind}.svg" for kind in ("searched", "evidence", "latency", "clusters")
    }


def test_two_equal_runs_do_not_differ(
    finished: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", str(folder / "run.json"), str(folder / "run.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "| clag | 4 | +0.00 [+0.00, +0.00] | +0.00 [+0.00, +0.00] |" in "\n".join(lines)


def test_a_difference_is_told_with_its_direction(
    finished: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worse = json.loads(json.dumps(finished))
    for row in worse["rows"]:
        row["scores"]["recall"] = 0.0
    (folder / "worse.json").write_text(json.dumps(worse), "utf-8")
    capsys.readouterr()
    assert main(["diff", str(folder / "run.json"), str(folder / "worse.json")]) == 0
    assert "| clag | 4 | -100.00 [-100.00, -100.00] * |" in capsys.readouterr().out


def test_a_case_shows_the_clusters_the_evidence_and_what_each_method_found(
    folder: Path, shared_server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["case", "--data", f"jsonl:{folder}", "--methods", "rag,clag", "--pool", "p1"]
    assert main([*arguments, *_server(shared_server)]) == 0
    page = capsys.readouterr().out
    assert "**Question** (q4, category two): When is rye bread sold?" in page
    assert "## Clusters" in page
    assert "| `clag` | 2 of 2 |" in page
    assert "**evidence** [1 March 2026]" in page or "**evidence** [2 March 2026]" in page
    assert "No language model was asked" in page


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--answers"], "--answers needs a language model"),
        (["--methods", ""], "--methods names no method"),
        (["--methods", "nothing"], "no method 'nothing'"),
        (["--budgets", "many"], "is not a list of numbers"),
        (["--budgets", "8"], "no context fits"),
        (["--server", "elsewhere=unix:x"], "no layout 'elsewhere'"),
        (["--set", "organize"], "is not NAME=VALUE"),
        (["--slm", "sometimes"], "'sometimes' is not one of"),
    ],
)
def test_a_wrong_option_ends_with_2_and_says_which(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    target = folder / "wrong.json"
    assert main(["run", "--data", f"jsonl:{folder}", "--json", str(target), *arguments]) == 2
    assert told in capsys.readouterr().err


def test_a_result_that_cannot_be_written_is_told_before_anything_is_measured(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "none" / "x.json"
    assert main(["run", "--data", f"jsonl:{folder}", "--methods", "rag", "--json", str(target)]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_run_that_is_told_to_end_ends_its_servers(folder: Path, tmp_path: Path) -> None:
    arguments = ["run", "--data", f"jsonl:{folder}", "--methods", "rag", "--json", str(tmp_path / "x.json")]
    scripted = ["--set", "models.backend=scripted"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-m", "clag_eval", *arguments, *scripted], env=environment, stderr=subprocess.DEVNULL
    ) as run:
        child = psutil.Process(run.pid)
        deadline_s = time.monotonic() + 60
        while not (servers := child.children(recursive=True)) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert servers
        run.terminate()
        assert run.wait(60) == 130
    assert psutil.wait_procs(servers, timeout=30)[1] == []
    assert list(tmp_path.glob("clag-eval-*")) == []


def test_a_server_that_is_not_there_is_told_in_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "--data", f"jsonl:{folder}", "--json", str(tmp_path / "x.json"), "--methods", "clag"]
    assert main([*arguments, "--server", f"unix:{tmp_path / 'none'}"]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("clag-eval: the server cannot be reached")


def test_a_server_is_started_for_each_grouping_and_ended_again(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text("{}", "utf-8")
    target = tmp_path / "own.json"
    settings = ["--set=models.backend=scripted", f"--set=models.script={script}"]
    arguments = ["run", "--data", f"jsonl:{folder}", "--methods", "cosine,amem,clag", "--limit-pools", "1"]
    assert main([*arguments, *settings, "--json", str(target)]) == 0
    made = json.loads(target.read_text("utf-8"))
    assert [row["method"] for row in made["summary"]] == ["cosine", "amem", "clag"]
    assert _row(made, "amem")["clusters"] == 1


def test_a_server_that_does_not_start_says_why(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "--data", f"jsonl:{folder}", "--methods", "clag", "--json", str(tmp_path / "x.json")]
    assert main([*arguments, "--set", "organize.no_such_setting=1"]) == 1
    told = capsys.readouterr().err
    assert "the server ended with" in told
    assert "no_such_setting" in told
