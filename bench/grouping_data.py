"""What is grouped: the example stream with topics given by hand, or a LoCoMo conversation from a copy of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from clag.v1 import types_pb2
from clag_client.values import to_timestamp

from bench.texts import EXAMPLE, example_lines
from examples.convert_locomo import Conversation, LocomoFormatError, parse_conversation

LABELS = Path(__file__).resolve().parent / "labels" / "warehouse_robot.json"
DATA_DIR = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
"""Where a copy of the evaluation data is looked for: beside the project."""

LOCOMO_DEFAULT = ("conv-26", "conv-30", "conv-49")
"""Three conversations that are among the shorter ones, of different people."""


class DataAbsent(Exception):
    """Data that is not part of the project is not on this machine; the message says what was looked for."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question and the ids of the memories that answer it."""

    text: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Corpus:
    """A stream of memories in order.

    Attributes:
        name: Short name, also that of the namespace.
        items: The memories, with ids.
        topics: Topic by id, given by hand; empty where nobody gave any.
        questions: Questions with at least one evidence memory among the items.
    """

    name: str
    items: tuple[types_pb2.MemoryInput, ...]
    topics: dict[str, str]
    questions: tuple[Asked, ...]

    def first(self, count: int) -> Corpus:
        """The first `count` memories, and the questions that they alone answer; all of it for 0."""
        if not count or count >= len(self.items):
            return self
        kept = {item.memory_id for item in self.items[:count]}
        return replace(
            self,
            items=self.items[:count],
            topics={key: topic for key, topic in self.topics.items() if key in kept},
            questions=tuple(one for one in self.questions if kept.issuperset(one.evidence)),
        )


def corpora(wanted: Sequence[str], data_dir: Path = DATA_DIR, *, limit: int = 0) -> tuple[list[Corpus], list[str]]:
    """Read what is wanted; returns the corpora, and one line for each that is absent.

    Args:
        wanted: `example`, `locomo` (three conversations) or `locomo:conv-26` each.
        data_dir: Directory with `locomo/locomo10.json`.
        limit: Memories of each; 0 for all.
    """
    found: list[Corpus] = []
    absent: list[str] = []
    for name in wanted:
        kind, _, conversation = name.partition(":")
        try:
            if kind == "example":
                found.append(example().first(limit))
            elif kind == "locomo":
                names = (conversation,) if conversation else LOCOMO_DEFAULT
                found.extend([locomo(one, data_dir).first(limit) for one in names])
            else:
                absent.append(f"{name}: there is example, locomo and locomo:conv-26")
        except DataAbsent as reason:
            absent.append(f"{name}: {reason}")
    return found, absent


def example() -> Corpus:
    """The two weeks of a warehouse robot, with topics given by hand."""
    lines = example_lines()
    labels: dict[str, list[str]] = json.loads(LABELS.read_text("utf-8"))["memories"]
    asked = [json.loads(line) for line in (EXAMPLE / "questions.jsonl").read_text("utf-8").splitlines()]
    return Corpus(
        "example",
        tuple(
            types_pb2.MemoryInput(
                memory_id=line["id"],
                text=line["text"],
                speaker=line.get("speaker", ""),
                session_id=line.get("session", ""),
                task=line.get("task", ""),
                kind=types_pb2.MemoryKind.Value(f"MEMORY_KIND_{line['kind'].upper()}"),
                event_time=to_timestamp(datetime.fromisoformat(line["time"])),
            )
            for line in lines
        ),
        {memory_id: topic for topic, ids in labels.items() for memory_id in ids},
        tuple(Asked(line["question"], tuple(line["evidence"])) for line in asked),
    )


def locomo(conversation: str, data_dir: Path) -> Corpus:
    """One conversation. Nobody labelled its topics; which memories a question needs is known.

    Raises:
        DataAbsent: The file or the conversation is not there, or is not LoCoMo.
    """
    path = data_dir / "locomo" / "locomo10.json"
    try:
        samples = {str(one["sample_id"]): one for one in json.loads(path.read_text("utf-8"))}
        return _from_conversation(parse_conversation(samples[conversation]))
    except OSError as error:
        why = f"no locomo/locomo10.json in --data-dir ({error.strerror}); it is not part of CLAG"
        raise DataAbsent(why) from None
    except KeyError:
        raise DataAbsent(f"no conversation {conversation}") from None
    except (ValueError, LocomoFormatError) as error:
        raise DataAbsent(f"not LoCoMo as published: {error}") from error


def _from_conversation(one: Conversation) -> Corpus:
    return Corpus(
        one.sample_id,
        tuple(
            types_pb2.MemoryInput(
                memory_id=turn.id,
                text=turn.text,
                speaker=turn.speaker,
                session_id=turn.session,
                kind=types_pb2.MEMORY_KIND_MESSAGE,
                event_time=to_timestamp(datetime.fromisoformat(turn.time)),
            )
            for turn in one.turns
        ),
        {},
        tuple(Asked(question.question, question.evidence) for question in one.questions if question.evidence),
    )
