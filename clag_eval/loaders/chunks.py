"""HotpotQA and BioASQ in the form of the paper: pools of sentences, 20 questions each, `gold_turn_ids`.

Each pool is one list of sentences in the order of the passages that they are cut from. Their common time and
speaker ("System") say nothing and are left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clag_eval.data import Dataset, Memory, Pool, Question

__all__ = ["read_chunks"]


def read_chunks(path: Path, name: str) -> Dataset:
    """Read all pools.

    Args:
        path: The file.
        name: What the data is called.
    """
    samples: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))
    pools: list[Pool] = []
    left_out = 0
    for sample in samples:
        turns = [
            turn
            for key, value in sample["conversation"].items()
            if key.startswith("session_") and isinstance(value, list)
            for turn in value
        ]
        memories = tuple(Memory(str(turn["dia_id"]), str(turn["text"])) for turn in turns if turn["text"])
        known = frozenset(memory.id for memory in memories)
        asked = [_question(record, known) for record in sample["qa"]]
        questions = tuple(question for question in asked if question.evidence)
        left_out += len(asked) - len(questions)
        pools.append(Pool(f"pool-{sample['sample_id']}", memories, questions))
    return Dataset(name, tuple(pools), left_out)


def _question(record: dict[str, Any], known: frozenset[str]) -> Question:
    gold = dict.fromkeys(str(one) for one in record["gold_turn_ids"])
    return Question(
        id=str(record["question_id"]),
        text=str(record["question"]),
        evidence=tuple(one for one in gold if one in known),
        category=str(record.get("category", "")),
        answer=str(record["answer"]) if record.get("answer") is not None else None,
    )
