"""Chats like those of RealTalk: a directory of JSON files, a chat each, or one such file.

A chat is an object with `session_1`, `session_2`, ... (lists of messages with `clean_text` or `text`, `speaker`,
`dia_id`, and `date_time` where known), times in `session_1_date_time`, and questions in `qa`, of the form of
LoCoMo (`question`, `answer`, `evidence`, `category`). Times are read in the forms below and left out where they
are in none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from clag_eval.data import Dataset, Memory, Pool, Question

__all__ = ["read_chats"]

_SESSION: Final = re.compile(r"session_(\d+)")
_ID: Final = re.compile(r"D:?(\d+):(\d+)")
_TIMES: Final = (
    "%d.%m.%Y, %H:%M:%S",
    "%d.%m.%Y, %H:%M",
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%d",
    "%I:%M %p on %d %B, %Y",
)


def read_chats(path: Path) -> Dataset:
    """Read all chats below a directory, or the one in a file."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    pools: list[Pool] = []
    left_out = 0
    for file in files:
        chat: dict[str, Any] = json.loads(file.read_text("utf-8"))
        memories = tuple(_messages(chat.get("conversation", chat)))
        known = frozenset(memory.id for memory in memories)
        asked = [_question(number, record, known) for number, record in enumerate(chat.get("qa", ()), start=1)]
        questions = tuple(question for question in asked if question.evidence)
        left_out += len(asked) - len(questions)
        pools.append(Pool(file.stem, memories, questions))
    return Dataset("realtalk", tuple(pools), left_out)


def _messages(chat: dict[str, Any]) -> Iterator[Memory]:
    numbers = sorted(int(match[1]) for match in map(_SESSION.fullmatch, chat) if match)
    for number in numbers:
        key = f"session_{number}"
        for position, message in enumerate(chat[key], start=1):
            text = str(message.get("clean_text") or message.get("text") or "").strip()
            caption = message.get("blip_caption") or message.get("image_caption")
            text = f"{text} [image: {caption}]".lstrip() if caption else text
            if not text:
                continue
            written = str(message.get("date_time") or chat.get(f"{key}_date_time") or "")
            name = _normal(str(message.get("dia_id") or f"D{number}:{position}"))
            yield Memory(name, text, str(message.get("speaker", "")), key, _utc(written))


def _question(number: int, record: dict[str, Any], known: frozenset[str]) -> Question:
    evidence = record.get("evidence", ())
    written = " ".join(str(one) for one in ([evidence] if isinstance(evidence, str) else evidence))
    found = dict.fromkeys(f"D{int(match[1])}:{int(match[2])}" for match in _ID.finditer(written))
    return Question(
        id=f"q{number:03d}",
        text=str(record["question"]),
        evidence=tuple(one for one in found if one in known),
        category=str(record.get("category", "")),
        answer=str(record["answer"]) if record.get("answer") is not None else None,
    )


def _normal(name: str) -> str:
    match = _ID.fullmatch(name)
    return f"D{int(match[1])}:{int(match[2])}" if match else name


def _utc(written: str) -> datetime | None:
    for form in _TIMES:
        try:
            return datetime.strptime(written.strip(), form).replace(tzinfo=UTC)
        except ValueError:
            continue
    return None
