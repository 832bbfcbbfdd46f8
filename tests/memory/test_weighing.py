"""How the geometry and the SLM are weighed into one score."""

from __future__ import annotations

import pytest

from clag_server.memory.weighing import combine, z_scores


def test_without_weight_the_order_is_that_of_the_cosines() -> None:
    combined = combine([0.2, 0.9, 0.5], [-1.0, -500.0, -2.0], 0.0)
    assert sorted(range(3), key=lambda i: -combined[i]) == [1, 2, 0]


def test_a_full_weight_lets_a_clear_word_of_the_model_overrule_a_near_tie() -> None:
    combined = combine([0.41, 0.40, 0.10], [-80.0, -40.0, -80.0], 4.0)
    assert max(range(3), key=lambda i: combined[i]) == 1


def test_a_model_that_says_the_same_of_all_candidates_changes_nothing() -> None:
    assert combine([0.1, 0.4], [-30.0, -30.0], 4.0) == combine([0.1, 0.4], [0.0, 0.0], 0.0)


def test_one_candidate_scores_nothing_and_none_is_no_error() -> None:
    assert combine([0.7], [-12.0], 4.0) == [0.0]
    assert combine([], [], 1.0) == []


def test_rounding_noise_is_not_blown_up_to_an_opinion() -> None:
    assert z_scores([0.1 + 0.2, 0.3, 0.3]) == [0.0, 0.0, 0.0]


def test_scores_are_shifted_and_scaled_and_keep_their_order() -> None:
    scores = z_scores([-300.0, -100.0, -200.0])
    assert scores == pytest.approx([-1.2247448, 1.2247448, 0.0])


def test_a_score_that_is_missing_is_told_not_guessed() -> None:
    with pytest.raises(ValueError, match="2 cosines and 1 channel"):
        combine([0.1, 0.2], [-1.0], 1.0)
