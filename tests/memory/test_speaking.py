"""A question that names a speaker finds first what that speaker said."""

from __future__ import annotations

import numpy as np
import pytest

from clag_server.catalog.api import EpisodeMembers
from clag_server.memory.config import RetrieveConfig
from clag_server.memory.ranking import rank
from clag_server.memory.speaking import speaker_bonus

CONFIG = RetrieveConfig(speaker_weight=0.5)


def said_by(*speakers: str) -> EpisodeMembers:
    numbers = np.arange(1, len(speakers) + 1, dtype=np.int64)
    vectors = np.tile(np.array([1.0, 0.0], dtype=np.float32), (len(speakers), 1))
    return EpisodeMembers(numbers, numbers, numbers, vectors, np.array(speakers, dtype=np.object_))


@pytest.mark.parametrize(
    ("question", "gains"),
    [
        ("What did Ana's sister cook?", [0.5, 0.0, 0.0]),
        ("what did ana cook", [0.5, 0.0, 0.0]),
        ("Did Garcia call?", [0.0, 0.5, 0.0]),
        ("What did Ana tell Maria?", [0.5, 0.5, 0.0]),
        ("机器人-2说了什么?", None),
    ],
)
def test_memories_of_the_speakers_that_are_named_gain(question: str, gains: list[float] | None) -> None:
    found = speaker_bonus(said_by("Ana", "Maria Garcia", ""), question, CONFIG)
    assert (found.tolist() if found is not None else None) == gains


@pytest.mark.parametrize("question", ["What is for dinner?", "", "What did Ana and Ben cook?", "The and of"])
def test_a_question_that_tells_no_speakers_apart_changes_nothing(question: str) -> None:
    assert speaker_bonus(said_by("Ana", "Ben"), question, CONFIG) is None


def test_without_a_weight_nobody_gains() -> None:
    assert speaker_bonus(said_by("Ana", "Ben"), "What did Ana say?", RetrieveConfig(speaker_weight=0.0)) is None


def test_the_gain_is_part_of_the_score_and_told_apart() -> None:
    members = said_by("Ben", "Ana")
    ranked = rank(
        members,
        np.array([1.0, 0.0], dtype=np.float32),
        np.zeros(2),
        CONFIG,
        spoken=speaker_bonus(members, "What did Ana say?", CONFIG),
    )
    assert ranked.keys.tolist() == [2, 1]
    assert ranked.spoken.tolist() == [0.5, 0.0]
    assert ranked.scores[0] - ranked.scores[1] == pytest.approx(0.5)
