"""Small data in the forms that the loaders read, written for these tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_SAID = (
    ("Ada", "I moved the boat to the north pier this morning."),
    ("Ben", "Good, the south pier is closed for repairs."),
    ("Ada", "The harbour master wants forty crowns a week for it."),
    ("Ben", "My sister's bakery sells rye bread on Fridays."),
    ("Ada", "Rye bread! I will come by on Friday then."),
    ("Ben", "She opens at six, before the ferry leaves."),
)


def locomo(path: Path) -> Path:
    """A conversation with the oddities of LoCoMo."""
    turns: list[dict[str, Any]] = [
        {"speaker": who, "dia_id": f"D{1 + place // 3}:{1 + place % 3}", "text": said}
        for place, (who, said) in enumerate(_SAID)
    ]
    turns[3] |= {"blip_caption": "a loaf on a table"}
    sample = {
        "sample_id": "conv-1",
        "conversation": {
            "speaker_a": "Ada",
            "speaker_b": "Ben",
            "session_1_date_time": "1:56 pm on 8 May, 2023",
            "session_1": turns[:3],
            "session_2_date_time": "9:05 am on 12 May, 2023",
            "session_2": turns[3:],
            "session_3_date_time": "9:05 am on 13 May, 2023",
        },
        "qa": [
            {"question": "Where is the boat?", "answer": "north pier", "evidence": ["D1:1"], "category": 4},
            {"question": "What does the pier cost?", "answer": 40, "evidence": ["D:1:03"], "category": 4},
            {"question": "What is sold?", "answer": "rye", "evidence": ["D2:1; D2:2", "D2:1"], "category": 1},
            {"question": "Who paints?", "adversarial_answer": "Ben", "evidence": ["D2:3", "D9:9"], "category": 5},
            {"question": "What was never said?", "answer": "nothing", "evidence": [], "category": 3},
        ],
    }
    path.write_text(json.dumps([sample]), "utf-8")
    return path


def chunks(path: Path) -> Path:
    """A pool in the form of the paper's HotpotQA and BioASQ."""
    turns = [{"speaker": "System", "dia_id": f"0:{row}", "text": said} for row, (_, said) in enumerate(_SAID)]
    asked = {
        "question": "Where is the boat?",
        "question_id": "a1",
        "answer": "north pier",
        "category": 4,
        "gold_turn_ids": ["0:0", "0:1"],
    }
    sample = {
        "sample_id": 7,
        "conversation": {"session_0": turns, "session_0_date_time": "2020-01-01 00:00:00"},
        "qa": [asked],
    }
    path.write_text(json.dumps([sample]), "utf-8")
    return path


def lines(folder: Path, *, pools: int = 2) -> Path:
    """Pools of the same six memories as JSON Lines."""
    folder.mkdir(parents=True, exist_ok=True)
    memories, questions = [], []
    for pool in range(pools):
        for row, (who, said) in enumerate(_SAID):
            memories.append(
                {
                    "id": f"m{row}",
                    "text": said,
                    "speaker": who,
                    "session": f"s{row // 3}",
                    "time": f"2026-03-0{1 + row // 3}T06:0{row}:00Z",
                    "pool": f"p{pool}",
                }
            )
        bread = {"question": "When is rye bread sold?", "evidence": ["m3", "m4"], "category": "two"}
        boat = {"question": "Where is the boat?", "evidence": ["m0"], "answer": "north pier"}
        questions += [{**boat, "pool": f"p{pool}"}, {**bread, "pool": f"p{pool}"}]
    (folder / "memories.jsonl").write_text("".join(json.dumps(one) + "\n" for one in memories), "utf-8")
    (folder / "questions.jsonl").write_text("".join(json.dumps(one) + "\n" for one in questions), "utf-8")
    return folder
