from __future__ import annotations

import math

import pytest

from clag_eval.answers import bleu_1, token_f1
from clag_eval.data import Memory
from clag_eval.intervals import paired_difference
from clag_eval.metrics import mean_scores, recall_of, score
from clag_eval.tokens import TokenEstimate, fill, line_of


def test_scores_of_a_ranking_are_those_of_their_definitions() -> None:
    found = score(["x", "a", "y", "b", *"qrstuv"], ["a", "b", "c", "d"])
    assert (found.precision, found.recall, found.hit) == (0.2, 0.5, 1.0)
    assert found.f1 == pytest.approx(2 * 0.2 * 0.5 / 0.7)
    gain = 1 / math.log2(3) + 1 / math.log2(5)
    assert found.ndcg == pytest.approx(gain / sum(1 / math.log2(rank + 1) for rank in (1, 2, 3, 4)))


def test_what_comes_after_the_first_ten_or_five_does_not_count() -> None:
    ranked = [*"0123456789", "late"]
    assert score(ranked, ["late"]).recall == 0.0
    assert (score(ranked, ["7"]).recall, score(ranked, ["7"]).recall_at_5) == (1.0, 0.0)


def test_a_memory_that_is_found_twice_counts_once() -> None:
    assert score(["a", "a"], ["a", "b"]).recall == 0.5


def test_a_perfect_ranking_has_an_ndcg_of_one_even_with_more_evidence_than_hits() -> None:
    gold = [f"g{number}" for number in range(14)]
    assert score(gold, gold).ndcg == pytest.approx(1.0)
    assert score(gold, gold).recall == pytest.approx(10 / 14)


def test_a_question_without_evidence_cannot_be_scored() -> None:
    with pytest.raises(ValueError, match="without evidence"):
        score(["a"], [])


def test_means_are_points_and_f1_is_averaged_by_question() -> None:
    means = mean_scores([score(["a"], ["a"]), score(["x"], ["a"])])
    assert means["recall@10"] == 50.0
    assert means["f1@10"] == pytest.approx(100 * (2 * 0.1 / 1.1) / 2)


def test_recall_of_a_context_is_the_share_of_the_evidence_in_it() -> None:
    assert recall_of(["a", "x"], ["a", "b"]) == 0.5


@pytest.mark.parametrize(
    ("answer", "right", "f1", "bleu"),
    [
        ("The North Pier.", "north pier", 1.0, 1.0),
        ("at the north pier", "north pier", 0.8, 2 / 3),
        ("pier", "north pier", 2 / 3, math.exp(-1)),
        ("pier pier pier", "north pier", 0.4, 1 / 3),
        ("", "north pier", 0.0, 0.0),
        ("boat", "north pier", 0.0, 0.0),
        ("the", "a", 1.0, 1.0),
    ],
)
def test_answers_are_compared_by_words_without_articles_and_punctuation(
    answer: str, right: str, f1: float, bleu: float
) -> None:
    assert token_f1(answer, right) == pytest.approx(f1)
    assert bleu_1(answer, right) == pytest.approx(bleu)


def test_a_difference_on_every_question_is_sure() -> None:
    gap = paired_difference([1.0] * 50, [0.0] * 50)
    assert (gap.mean, gap.low, gap.high, gap.sure) == (1.0, 1.0, 1.0, True)


def test_a_difference_that_goes_both_ways_is_not_sure() -> None:
    gap = paired_difference([1.0, 0.0] * 25, [0.0, 1.0] * 25)
    assert gap.low < 0 < gap.high
    assert not gap.sure


def test_pairing_makes_a_small_steady_difference_sure_where_the_scores_scatter() -> None:
    base = [number % 10 / 10 for number in range(200)]
    gap = paired_difference([value + 0.02 for value in base], base)
    assert gap.low == pytest.approx(0.02)


def test_values_that_do_not_pair_are_refused() -> None:
    with pytest.raises(ValueError, match="3 and 2 values"):
        paired_difference([1, 2, 3], [1, 2])


def test_lengths_are_estimated_from_texts_whose_length_is_known() -> None:
    estimate = TokenEstimate()
    estimate.learn("one two three, four", 10)
    assert estimate.count("five six") == pytest.approx(4.0)


def test_a_context_passes_over_what_does_not_fit_and_goes_on() -> None:
    estimate = TokenEstimate(1.0)
    memories = [Memory("a", "one two three"), Memory("b", "word " * 50), Memory("c", "four five six")]
    taken, tokens = fill(memories, 10, estimate)
    assert taken == ("a", "c")
    assert tokens <= 10


def test_a_line_of_a_prompt_has_date_and_speaker_as_far_as_they_are_known() -> None:
    assert line_of(Memory("a", "text", speaker="Ada")) == "Ada: text"
    assert line_of(Memory("a", "text")) == "text"
