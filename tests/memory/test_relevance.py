"""What speaks for an answer: nearness in meaning, and how much of what is asked about the memories hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clag_server.memory.relevance import Evidence, evidence_of, relevance
from clag_server.types.retrieval import MemoryHit, ScoreParts
from tests.memory.builders import memory


def hit(text: str, *, rank: int = 1, cosine: float = 0.5, speaker: str = "") -> MemoryHit:
    parts = ScoreParts(cosine, 0, 0, 0, "cluster")
    return MemoryHit(memory(rank, text, speaker=speaker), "", 1.0, rank, parts)


def covered(question: str, *texts: str, frequency: dict[str, int] | None = None) -> float | None:
    hits = [hit(text, rank=rank) for rank, text in enumerate(texts, start=1)]
    return evidence_of(question, hits, frequency or {}, 100, dense=True).coverage


def test_a_rare_word_that_is_missing_counts_more_than_a_common_one() -> None:
    common = {"dock": 60, "sonata": 0}
    assert covered("dock sonata", "the dock", frequency=common) == pytest.approx(0.15, abs=0.1)
    assert covered("dock sonata", "a sonata", frequency=common) == pytest.approx(0.85, abs=0.1)


def test_words_may_be_spread_over_the_best_hits_but_not_over_all() -> None:
    assert covered("red dock", "the dock", "a red box") == pytest.approx(1.0)
    assert covered("red dock", *(["the dock"] * 10), "a red box") == pytest.approx(0.5, abs=0.1)


def test_the_speaker_is_part_of_what_a_memory_holds() -> None:
    hits = [hit("I moved the box", speaker="Anna")]
    assert evidence_of("Anna box", hits, {}, 10, dense=True).coverage == pytest.approx(1.0)


@pytest.mark.parametrize(("question", "text"), [("仓库", "机器人在仓库"), ("猫", "猫は屋根にいる")])
def test_words_of_any_script_are_covered(question: str, text: str) -> None:
    assert covered(question, text) == pytest.approx(1.0)


def test_a_question_of_function_words_alone_is_judged_by_meaning() -> None:
    near = evidence_of("what was that?", [hit("x", cosine=0.9)], {}, 10, dense=True)
    far = evidence_of("what was that?", [hit("x", cosine=0.1)], {}, 10, dense=True)
    assert near.coverage is None
    assert relevance(near) > 0.9 > 0.1 > relevance(far)


def test_without_vectors_the_cosine_is_unknown_and_words_decide() -> None:
    unknown = evidence_of("the dock", [hit("the dock", cosine=0.0)], {}, 10, dense=False)
    assert unknown.cosine is None
    assert relevance(unknown) > 0.9
    assert relevance(Evidence(None, 0.0)) < 0.1
    assert relevance(Evidence(None, None)) == 0.0


@given(st.floats(-1, 1), st.floats(-1, 1), st.floats(0, 1), st.floats(0, 1))
def test_more_evidence_is_never_less_relevant(a: float, b: float, c: float, d: float) -> None:
    low, high = relevance(Evidence(min(a, b), min(c, d))), relevance(Evidence(max(a, b), max(c, d)))
    assert 0.0 <= low <= high <= 1.0
