"""Answers in a run, from a server whose language model is scripted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clag_eval.cli import main
from tests.eval import samples
from tests.support.process import ServerProcess


def test_every_method_is_answered_from_what_it_found(
    tmp_path: Path, shared_server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = samples.lines(tmp_path / "answered", pools=1)
    target = tmp_path / "answers.json"
    arguments = ["run", "--data", f"jsonl:{folder}", "--methods", "full,clag", "--slm", "auto", "--answers"]
    assert main([*arguments, "--json", str(target), "--server", f"unix:{shared_server.socket}"]) == 0
    made = json.loads(target.read_text("utf-8"))
    assert made["run"]["notes"] == []
    assert made["run"]["slm"]
    for row in made["rows"]:
        assert row["reply"] is not None
        assert (row["reply"]["f1"] is None) == (row["question"] == "q2")
    for row in made["summary"]:
        assert row["answers"] == 1
        assert {"answer_f1", "answer_bleu_1", "refused_wrongly", "refused_rightly", "prompt_tokens"} <= row.keys()
    assert "Answers of" in capsys.readouterr().out
