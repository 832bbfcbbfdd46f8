"""LoCoMo conversations become files that `clag ingest` reads, through the converter's command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]
_CONVERTER = _ROOT / "examples" / "convert_locomo.py"
_DATA = Path(os.environ.get("CLAG_DATA", _ROOT.parent / "shared" / "data")) / "locomo" / "locomo10.json"

_TINY = {
    "sample_id": "conv-7",
    "conversation": {
        "speaker_a": "Ada",
        "speaker_b": "Bo",
        "session_10_date_time": "12:13 am on 5 June, 2023",
        "session_10": [{"speaker": "Bo", "dia_id": "D10:1", "text": "Later, then. "}],
        "session_2_date_time": "1:56 pm on 8 May, 2023",
        "session_2": [
            {"speaker": "Ada", "dia_id": "D2:1", "text": "Look!", "blip_caption": "a heron on a forklift"},
            {"speaker": "Bo", "dia_id": "D2:2", "text": "Pâté, 寿司 and tea."},
        ],
        "session_11_date_time": "9:00 am on 6 June, 2023",
    },
    "qa": [
        {"question": "What?", "answer": 2022, "evidence": ["D2:01; D10:1", "D:2:2", "D2:1"], "category": 1},
        {"question": "Who?", "answer": "Bo", "evidence": ["D9:9"], "category": 4},
        {"question": "Why?", "adversarial_answer": "Rain", "evidence": [], "category": 5},
    ],
}


def _convert(
    source: Path, out: Path, conversation: str
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]], list[dict[str, Any]]]:
    memories, questions = out / "memories.jsonl", out / "questions.jsonl"
    command = [sys.executable, str(_CONVERTER), str(source), "--conversation", conversation]
    command += ["--memories", str(memories), "--questions", str(questions)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
    )
    return done, _lines(memories), _lines(questions)


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "locomo10.json"
    path.write_text(json.dumps([_TINY]), encoding="utf-8")
    return path


def test_turns_keep_speaker_session_and_time_and_sessions_are_in_order_of_number(
    tiny: Path, tmp_path: Path
) -> None:
    done, memories, _ = _convert(tiny, tmp_path, "conv-7")
    assert done.returncode == 0, done.stderr
    assert [memory["id"] for memory in memories] == ["conv-7:D2:1", "conv-7:D2:2", "conv-7:D10:1"]
    assert memories[1] == {
        "id": "conv-7:D2:2",
        "text": "Pâté, 寿司 and tea.",
        "speaker": "Bo",
        "session": "conv-7:session_2",
        "time": "2023-05-08T13:56:00Z",
        "kind": "message",
    }
    assert memories[2]["time"] == "2023-06-05T00:13:00Z"
    assert memories[2]["text"] == "Later, then."


def test_the_caption_of_an_image_is_part_of_the_text(tiny: Path, tmp_path: Path) -> None:
    _, memories, _ = _convert(tiny, tmp_path, "conv-7")
    assert memories[0]["text"] == "Look! [image: a heron on a forklift]"


def test_evidence_in_every_spelling_is_found_once_and_unknown_ids_are_set_apart(tiny: Path, tmp_path: Path) -> None:
    _, _, questions = _convert(tiny, tmp_path, "conv-7")
    assert questions[0]["evidence"] == ["conv-7:D2:1", "conv-7:D10:1", "conv-7:D2:2"]
    assert questions[0]["evidence_missing"] == []
    assert questions[1]["evidence"] == []
    assert questions[1]["evidence_missing"] == ["conv-7:D9:9"]


def test_answers_are_text_and_adversarial_ones_are_marked(tiny: Path, tmp_path: Path) -> None:
    _, _, questions = _convert(tiny, tmp_path, "conv-7")
    answers = [(question["answer"], question["adversarial"], question["category"]) for question in questions]
    assert answers == [("2022", False, 1), ("Bo", False, 4), ("Rain", True, 5)]


def test_an_unknown_conversation_is_refused_with_the_names_that_exist(tiny: Path, tmp_path: Path) -> None:
    done, memories, _ = _convert(tiny, tmp_path, "conv-8")
    assert done.returncode == 2
    assert done.stderr == "convert_locomo: no conversation 'conv-8'; there are: conv-7\n"
    assert memories == []


def test_a_file_that_is_not_locomo_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('[{"sample_id": "conv-7", "qa": []}]', encoding="utf-8")
    done, _, _ = _convert(path, tmp_path, "conv-7")
    assert done.returncode == 2
    assert done.stderr == "convert_locomo: conv-7: field 'conversation' is missing\n"


@pytest.mark.skipif(not _DATA.exists(), reason="locomo10.json not found; set CLAG_DATA to the data folder")
def test_the_published_file_converts_completely(tmp_path: Path) -> None:
    samples = json.loads(_DATA.read_text(encoding="utf-8"))
    ids: set[str] = set()
    missing: set[str] = set()
    turns = questions_total = without_evidence = 0
    for sample in samples:
        done, memories, questions = _convert(_DATA, tmp_path, sample["sample_id"])
        assert done.returncode == 0, done.stderr
        turns += len(memories)
        questions_total += len(questions)
        ids |= {memory["id"] for memory in memories}
        assert [memory["time"] for memory in memories] == sorted(memory["time"] for memory in memories)
        without_evidence += sum(not q["evidence"] and not q["evidence_missing"] for q in questions)
        missing.update(*(question["evidence_missing"] for question in questions))
    assert (len(samples), turns, questions_total) == (10, 5882, 1986)
    assert len(ids) == 5882
    assert all(re.fullmatch(r"[A-Za-z0-9._:-]{1,128}", name) for name in ids)
    assert without_evidence == 4
    assert missing == {"conv-42:D10:19", "conv-47:D4:36"}
