"""Values of an answer: the question with its bounds, and the frames in which the answer comes."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from clag_server.types.retrieval import AssembledContext, ClusterSelection, MemoryHits, RetrieveDone, RetrieveQuery


class AnswerEnd(enum.IntEnum):
    """Why an answer ended (numbers as in `clag.v1.AnswerEnd`)."""

    COMPLETE = 1
    MAX_TOKENS = 2
    NO_EVIDENCE = 3
    DEADLINE = 4


@dataclass(frozen=True, slots=True)
class AnswerQuery:
    """A question for the SLM: how memories are looked for, and how it may answer.

    Attributes:
        retrieve: The retrieval; its text is the question, its `context_tokens` is not 0.
        max_tokens: Tokens of the answer, at most.
        instructions: How to answer, in the caller's words; "" for nothing said.
        without_evidence: Whether it answers even when nothing relevant was found.
    """

    retrieve: RetrieveQuery
    max_tokens: int
    instructions: str = ""
    without_evidence: bool = False


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """Text to append to the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class AnswerDone:
    """The end: why, the memories that the SLM was given, tokens in and out, seconds of writing, the retrieval."""

    end: AnswerEnd
    memory_ids: tuple[str, ...]
    prompt_tokens: int
    answer_tokens: int
    generate_s: float
    retrieval: RetrieveDone


AnswerStage: TypeAlias = ClusterSelection | MemoryHits | AssembledContext | AnswerPiece | AnswerDone
