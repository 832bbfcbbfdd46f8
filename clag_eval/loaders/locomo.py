"""LoCoMo: ten very long conversations, `locomo10.json` as published.

Oddities and what is done about them: evidence is written in several ways (`D8:6; D9:17`, `D:11:26`, `D30:05`), so
every session and turn number in such a string counts; ids that no turn has are passed over; questions without any
evidence are left out (4 of 1,986). Category 5 has no right answer, only `adversarial_answer`; some answers are
integers. All turns of a session carry the session's time, taken as UTC. The caption of an image is part of the
text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from clag_eval.data import DataError, Dataset, Memory, Pool, Question

__all__ = ["read_locomo"]

_EVIDENCE: Final = re.compile(r"D:?(\d+):(\d+)")
_SESSION: Final = re.compile(r"session_(\d+)")
_UNANSWERABLE: Final = "5"


def read_locomo(path: Path) -> Dataset:
    """Read all conversations; a pool each."""
    samples: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))
    pools: list[Pool] = []
    left_out = 0
    for sample in samples:
        memories = tuple(_turns(sample["conversation"]))
        known = frozenset(memory.id for memory in memories)
        asked = [_question(number, record, known) for number, record in enumerate(sample["qa"], start=1)]
        questions = tuple(question for question in asked if question.evidence)
        left_out += len(asked) - len(questions)
        pools.append(Pool(str(sample["sample_id"]), memories, questions))
    return Dataset("locomo", tuple(pools), left_out)


def _turns(conversation: dict[str, Any]) -> Iterator[Memory]:
    numbers = sorted(int(match[1]) for match in map(_SESSION.fullmatch, conversation) if match)
    for number in numbers:
        key = f"session_{number}"
        time = _utc(str(conversation[f"{key}_date_time"]))
        for turn in conversation[key]:
            said = str(turn["text"]).strip()
            caption = turn.get("blip_caption")
            text = f"{said} [image: {caption}]".lstrip() if caption else said
            yield Memory(str(turn["dia_id"]), text, str(turn["speaker"]), key, time)


def _utc(spoken: str) -> datetime:
    try:
        return datetime.strptime(spoken, "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
    except ValueError:
        raise DataError(f"the session time {spoken!r} is not like '1:56 pm on 8 May, 2023'") from None


def _question(number: int, record: dict[str, Any], known: frozenset[str]) -> Question:
    category = str(record["category"])
    found = (
        f"D{int(match[1])}:{int(match[2])}"
        for written in record.get("evidence", ())
        for match in _EVIDENCE.finditer(written)
    )
    # A few questions of category 5 have a real answer all the same.
    answer = record.get("answer") if category != _UNANSWERABLE or "answer" in record else None
    return Question(
        id=f"q{number:03d}",
        text=str(record["question"]),
        evidence=tuple(name for name in dict.fromkeys(found) if name in known),
        category=category,
        answer=None if answer is None else str(answer),
    )
