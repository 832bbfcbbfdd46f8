"""Convert one conversation of LoCoMo into the JSON Lines that `clag ingest` reads.

LoCoMo (https://github.com/snap-research/locomo, CC BY-NC 4.0) is not part of this project: give the path of
your own copy of `locomo10.json`. Two files come out, memories and questions, in the form of
`examples/warehouse_robot`:

    python examples/convert_locomo.py locomo10.json --conversation conv-26 --memories conv-26.jsonl

What is odd in the data and what is done about it:

- Evidence is written in several ways (`D8:6; D9:17`, `D:11:26`, `D30:05`): all ids in such a string count, without
  leading zeros. Ids that no turn has go to `evidence_missing`; a few questions have no evidence at all.
- Questions of category 5 have no right answer in the conversation, only `adversarial_answer`; some answers are
  integers and become strings.
- A turn has no time of its own: all turns of a session carry the session's time, taken as UTC; their order is
  the order of the lines. Sessions that have a time but no turns are left out.
- The caption of an image that was sent along is part of what was said: `[image: caption]` after the text.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Conversation", "LocomoFormatError", "Question", "Turn", "main", "parse_conversation"]

_EVIDENCE = re.compile(r"D:?(\d+):(\d+)")
_SESSION = re.compile(r"session_(\d+)")
_ADVERSARIAL_CATEGORY = 5


class LocomoFormatError(ValueError):
    """The file is not LoCoMo as published; the message names the place."""


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """One turn as a memory: field names are those of a line that `clag ingest` reads."""

    id: str
    text: str
    speaker: str
    session: str
    time: str
    kind: str = "message"


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """One question; `evidence` holds ids of turns that exist, `evidence_missing` ids that do not."""

    id: str
    question: str
    answer: str
    adversarial: bool
    category: int
    evidence: tuple[str, ...]
    evidence_missing: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Conversation:
    """All turns in order of time and all questions of one LoCoMo sample."""

    sample_id: str
    turns: tuple[Turn, ...]
    questions: tuple[Question, ...]


def parse_conversation(sample: dict[str, Any]) -> Conversation:
    """Convert one element of the list in `locomo10.json`.

    Raises:
        LocomoFormatError: A field that LoCoMo always has is missing or a session's time cannot be read.
    """
    try:
        sample_id = str(sample["sample_id"])
        turns = tuple(_turns(sample_id, sample["conversation"]))
        known = frozenset(turn.id for turn in turns)
        questions = tuple(
            _question(sample_id, number, record, known) for number, record in enumerate(sample["qa"], start=1)
        )
    except KeyError as error:
        name = sample.get("sample_id", "a sample without sample_id")
        raise LocomoFormatError(f"{name}: field {error} is missing") from error
    return Conversation(sample_id=sample_id, turns=turns, questions=questions)


def _turns(sample_id: str, conversation: dict[str, Any]) -> Iterable[Turn]:
    numbers = sorted(int(match[1]) for match in map(_SESSION.fullmatch, conversation) if match)
    for number in numbers:
        key = f"session_{number}"
        time = _utc(conversation[f"{key}_date_time"])
        for turn in conversation[key]:
            caption = turn.get("blip_caption")
            said = str(turn["text"]).strip()
            yield Turn(
                id=f"{sample_id}:{turn['dia_id']}",
                text=f"{said} [image: {caption}]".lstrip() if caption else said,
                speaker=str(turn["speaker"]),
                session=f"{sample_id}:{key}",
                time=time,
            )


def _utc(spoken: str) -> str:
    """Turn "1:56 pm on 8 May, 2023" into "2023-05-08T13:56:00Z"."""
    try:
        moment = datetime.datetime.strptime(spoken, "%I:%M %p on %d %B, %Y").replace(tzinfo=datetime.UTC)
    except ValueError as error:
        raise LocomoFormatError(f"session time {spoken!r} is not like '1:56 pm on 8 May, 2023'") from error
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _question(sample_id: str, number: int, record: dict[str, Any], known: frozenset[str]) -> Question:
    category = int(record["category"])
    found = (
        f"{sample_id}:D{int(match[1])}:{int(match[2])}"
        for written in record.get("evidence", ())
        for match in _EVIDENCE.finditer(written)
    )
    # One id is sometimes listed twice for a question; recall counts it once.
    evidence = tuple(dict.fromkeys(found))
    # Two questions of category 5 have a real answer beside the adversarial one: the real one wins.
    adversarial = category == _ADVERSARIAL_CATEGORY and "answer" not in record
    return Question(
        id=f"{sample_id}:q{number:03d}",
        question=str(record["question"]),
        answer=str(record["adversarial_answer" if adversarial else "answer"]),
        adversarial=adversarial,
        category=category,
        evidence=tuple(name for name in evidence if name in known),
        evidence_missing=tuple(name for name in evidence if name not in known),
    )


def _write_lines(path: Path, records: Iterable[Turn | Question]) -> None:
    with path.open("w", encoding="utf-8") as out:
        out.writelines(json.dumps(dataclasses.asdict(record), ensure_ascii=False) + "\n" for record in records)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Convert one LoCoMo conversation to JSON Lines.")
    parser.add_argument("locomo", type=Path, help="path of locomo10.json")
    parser.add_argument("--conversation", default="conv-26", help="sample id (default: %(default)s)")
    parser.add_argument("--memories", type=Path, required=True, help="file to write the turns to")
    parser.add_argument("--questions", type=Path, help="file to write the questions to (default: none)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns 0, or 2 with one line on standard error when the input is unusable."""
    arguments = _arguments(argv)
    try:
        samples: list[dict[str, Any]] = json.loads(arguments.locomo.read_text(encoding="utf-8"))
        by_id = {str(sample["sample_id"]): sample for sample in samples}
        if arguments.conversation not in by_id:
            there = ", ".join(by_id)
            raise LocomoFormatError(f"no conversation {arguments.conversation!r}; there are: {there}")
        conversation = parse_conversation(by_id[arguments.conversation])
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"convert_locomo: {error}", file=sys.stderr)
        return 2
    _write_lines(arguments.memories, conversation.turns)
    if arguments.questions is not None:
        _write_lines(arguments.questions, conversation.questions)
    print(f"{conversation.sample_id}: {len(conversation.turns)} memories, {len(conversation.questions)} questions")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
