"""What is evaluated: pools of memories in order of arrival, and questions with the memories that answer them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

__all__ = ["DataError", "Dataset", "Memory", "Pool", "Question", "limited", "shuffled"]


class DataError(Exception):
    """The data cannot be read; the message says what was expected, and where."""


@dataclass(frozen=True, slots=True)
class Memory:
    """One memory as it will be ingested.

    Attributes:
        id: Unique in its pool, of A-Z a-z 0-9 . _ : - characters.
        text: What was said or observed.
        speaker: Who said it; empty where nobody did.
        session: The session that it belongs to; empty where there is none.
        time: When it happened, with a time zone; None where that is not known.
    """

    id: str
    text: str
    speaker: str = ""
    session: str = ""
    time: datetime | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Attributes:
        id: Unique in its pool.
        text: The question.
        evidence: Ids of the memories that answer it; at least one, each once, all of them in the pool.
        category: The data's own kind of question, e.g. "1"; empty where it has none.
        answer: The right answer; None where the data gives none (a question that cannot be answered).
    """

    id: str
    text: str
    evidence: tuple[str, ...]
    category: str = ""
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class Pool:
    """Memories that one agent has, in order of arrival, and the questions that are asked of it."""

    name: str
    memories: tuple[Memory, ...]
    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True)
class Dataset:
    """Pools of one source.

    Attributes:
        name: Kind of data and how it is known, e.g. "locomo".
        pools: The pools.
        left_out: Questions that are not asked, because the data names no memory that answers them.
    """

    name: str
    pools: tuple[Pool, ...]
    left_out: int = 0

    @property
    def questions(self) -> int:
        """Number of questions."""
        return sum(len(pool.questions) for pool in self.pools)

    @property
    def memories(self) -> int:
        """Number of memories."""
        return sum(len(pool.memories) for pool in self.pools)


def limited(data: Dataset, *, pools: int = 0, questions: int = 0, only: Sequence[str] = ()) -> Dataset:
    """Return less of the data.

    Args:
        data: All of it.
        pools: The first so many pools; 0 for all.
        questions: Questions of each pool, spread evenly over its list; 0 for all.
        only: Names of pools; all when empty.

    Raises:
        DataError: A pool of that name is not there.
    """
    names = [pool.name for pool in data.pools]
    unknown = [name for name in only if name not in names]
    if unknown:
        raise DataError(f"no pool {unknown[0]!r}; there are: {', '.join(names)}")
    kept = [pool for pool in data.pools if not only or pool.name in only]
    kept = kept[:pools] if pools else kept
    return replace(data, pools=tuple(replace(pool, questions=_spread(pool.questions, questions)) for pool in kept))


def shuffled(data: Dataset, seed: int) -> Dataset:
    """Return the data with the memories of each pool in random order.

    A control: what retrieval gains from neighbours in time must be gone, and no more than that. Sessions are left
    out, for they would give the order back.
    """
    pools = []
    for pool in data.pools:
        memories = [replace(memory, session="") for memory in pool.memories]
        random.Random(f"{seed}/{pool.name}").shuffle(memories)  # noqa: S311  # not a secret
        pools.append(replace(pool, memories=tuple(memories)))
    return replace(data, name=f"{data.name}, shuffled", pools=tuple(pools))


def _spread(questions: tuple[Question, ...], count: int) -> tuple[Question, ...]:
    if not count or count >= len(questions):
        return questions
    return tuple(questions[index * len(questions) // count] for index in range(count))
