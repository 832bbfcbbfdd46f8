"""Pools of memories with questions that they answer, and questions that they do not: those of another pool.

What marks a question as another pool's is often a name. So LoCoMo's are asked twice: as they are, and with the
names of the pool's own speakers put in the place of the other's, which only what is asked about can tell apart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clag.v1 import types_pb2

from bench.grouping_data import locomo
from examples.convert_locomo import Conversation, parse_conversation

ANSWERABLE: Final = "own"
ADVERSARIAL: Final = "adversarial"
"""LoCoMo's category 5: about what the conversation does speak of, with a detail or a person turned round."""
OTHER: Final = "other pool"
RENAMED: Final = "other pool, own names"


@dataclass(frozen=True, slots=True)
class Posed:
    """A question, and how it stands to the pool that it is asked of."""

    text: str
    kind: str


@dataclass(frozen=True, slots=True)
class Pool:
    """Memories, and what is asked of them."""

    name: str
    items: Sequence[types_pb2.MemoryInput]
    posed: Sequence[Posed]


def locomo_pools(data_dir: Path, *, limit: int) -> Iterator[Pool]:
    """Yield LoCoMo's conversations; each is asked its own questions and those of the next one."""
    samples = json.loads((data_dir / "locomo" / "locomo10.json").read_text("utf-8"))[: limit or None]
    talks = [parse_conversation(one) for one in samples]
    for talk, following in zip(talks, [*talks[1:], talks[0]], strict=True):
        posed = [
            Posed(one.question, ADVERSARIAL if one.adversarial else ANSWERABLE)
            for one in talk.questions
            if one.evidence
        ]
        strange = [one.question for one in following.questions if one.evidence and not one.adversarial]
        posed += [Posed(text, OTHER) for text in strange]
        posed += [Posed(_renamed(text, following, talk), RENAMED) for text in strange]
        yield Pool(talk.sample_id, locomo(talk.sample_id, data_dir).items, posed)


def chunk_pools(path: Path, name: str, *, limit: int) -> Iterator[Pool]:
    """Yield pools of sentences (HotpotQA, BioASQ); each is asked its own questions and those of the next one."""
    samples = json.loads(path.read_text("utf-8"))[: limit or None]
    for sample, following in zip(samples, [*samples[1:], samples[0]], strict=True):
        turns = [turn for key, value in sample["conversation"].items() if isinstance(value, list) for turn in value]
        items = [types_pb2.MemoryInput(text=turn["text"], session_id="s") for turn in turns]
        posed = [Posed(one["question"], ANSWERABLE) for one in sample["qa"]]
        posed += [Posed(one["question"], OTHER) for one in following["qa"]]
        yield Pool(f"{name}-{sample['sample_id']}", items, posed)


def _renamed(text: str, theirs: Conversation, ours: Conversation) -> str:
    """Put our speakers' names in the place of theirs."""
    for old, new in zip(_speakers(theirs), _speakers(ours), strict=True):
        text = re.sub(rf"\b{re.escape(old)}\b", new, text)
    return text


def _speakers(talk: Conversation) -> list[str]:
    return sorted({turn.speaker for turn in talk.turns})[:2]
