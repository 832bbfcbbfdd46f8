"""Any data as JSON Lines: a directory with `memories.jsonl` and `questions.jsonl`.

A memory is a line such as

    {"id": "m1", "text": "...", "speaker": "Anna", "session": "monday", "time": "2026-03-02T06:05:00Z", "pool": "a"}

of which `id` and `text` are needed; a question is

    {"id": "q1", "question": "...", "evidence": ["m1"], "answer": "...", "category": "plain", "pool": "a"}

of which `question` and `evidence` are needed. Order of lines is order of arrival. Memories and questions of one
`pool` belong together; without it all are in one. The names `stream.jsonl` and other keys of `clag ingest` are
fine too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from clag_eval.data import DataError, Dataset, Memory, Pool, Question

__all__ = ["read_jsonl"]

_MEMORIES: Final = ("memories.jsonl", "stream.jsonl")
_ONLY_POOL: Final = "all"


def read_jsonl(path: Path) -> Dataset:
    """Read a directory.

    Raises:
        DataError: A file or a field is missing, or a time cannot be read.
    """
    source = next((path / name for name in _MEMORIES if (path / name).exists()), path / _MEMORIES[0])
    memories: dict[str, list[Memory]] = {}
    for record in _lines(source):
        memories.setdefault(str(record.get("pool", _ONLY_POOL)), []).append(_memory(record))
    questions: dict[str, list[Question]] = {name: [] for name in memories}
    left_out = 0
    for number, record in enumerate(_lines(path / "questions.jsonl"), start=1):
        pool = str(record.get("pool", _ONLY_POOL))
        if pool not in memories:
            raise DataError(f"question {number} is of the pool {pool!r}, which has no memories")
        question = _question(number, record, {memory.id for memory in memories[pool]})
        left_out += not question.evidence
        if question.evidence:
            questions[pool].append(question)
    pools = tuple(Pool(name, tuple(kept), tuple(questions[name])) for name, kept in memories.items())
    return Dataset(path.resolve().name or "jsonl", pools, left_out)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text("utf-8").splitlines():
        if line.strip():
            yield json.loads(line)


def _memory(record: dict[str, Any]) -> Memory:
    return Memory(
        id=str(record["id"]),
        text=str(record["text"]),
        speaker=str(record.get("speaker") or ""),
        session=str(record.get("session") or ""),
        time=_time(record.get("time")),
    )


def _question(number: int, record: dict[str, Any], known: set[str]) -> Question:
    gold = dict.fromkeys(str(one) for one in record["evidence"])
    kind = record.get("category", record.get("type", ""))
    return Question(
        id=str(record.get("id", f"q{number}")),
        text=str(record["question"]),
        evidence=tuple(one for one in gold if one in known),
        category=", ".join(map(str, kind)) if isinstance(kind, list) else str(kind),
        answer=str(record["answer"]) if record.get("answer") is not None else None,
    )


def _time(written: str | None) -> datetime | None:
    if not written:
        return None
    try:
        moment = datetime.fromisoformat(written)
    except ValueError:
        raise DataError(f"the time {written!r} is not like 2026-03-02T06:05:00Z") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
