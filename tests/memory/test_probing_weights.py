"""A weight is earned by a gain that is not luck: over many models, and by small sums checked by hand."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clag_server.memory.probing.statistics import chance_of_gain, position_bias, wilson
from clag_server.memory.probing.weights import Case, weigh_choices, written_weight
from clag_server.types.competence import FULL_WEIGHT

OPTIONS = 5
WORLDS = 12
QUESTIONS = 5

Answers = Callable[[random.Random, int], tuple[float, ...]]


def noise(dice: random.Random, _right: int) -> tuple[float, ...]:
    """Scores of a model that guesses."""
    return tuple(dice.gauss(0, 1) for _ in range(OPTIONS))


def knowing(strength: float) -> Answers:
    """A model whose right option stands out of the noise by so many deviations."""

    def answers(dice: random.Random, right: int) -> tuple[float, ...]:
        return tuple(dice.gauss(strength if i == right else 0, 1) for i in range(OPTIONS))

    return answers


def cases(seed: int, channel: Answers, vectors: Answers) -> list[Case]:
    dice = random.Random(seed)  # noqa: S311
    found = []
    for world in range(WORLDS):
        for right in range(QUESTIONS):
            cosines, scores = vectors(dice, right), channel(dice, right)
            found.append(Case(f"w{world}", cosines, scores, right))
    return found


def earned(seed: int, channel: Answers, vectors: Answers) -> float:
    return weigh_choices(cases(seed, channel, vectors), valid_rate=1.0, bias=0.0).weight


def test_of_four_hundred_guessing_models_at_most_four_get_a_say() -> None:
    trusted = sum(earned(seed, noise, knowing(1.5)) > 0 for seed in range(400))
    assert trusted <= 4


def test_beside_vectors_that_guess_too_a_guessing_model_seldom_gets_a_say() -> None:
    # Here nothing can be spoiled: with or without it one answer in five is right.
    trusted = sum(earned(seed, noise, noise) > 0 for seed in range(400))
    assert trusted <= 20


def test_a_model_that_says_what_the_vectors_say_gets_no_say() -> None:
    for seed in range(50):
        same = [Case(one.world, one.cosines, one.cosines, one.right) for one in cases(seed, noise, knowing(1.5))]
        assert weigh_choices(same, valid_rate=1.0, bias=0.0).weight == 0


def test_nearly_every_model_that_is_clearly_better_gets_a_say() -> None:
    trusted = sum(earned(seed, knowing(3.0), knowing(1.0)) > 0 for seed in range(100))
    assert trusted >= 98


def test_a_perfect_model_has_full_weight() -> None:
    assert all(earned(seed, knowing(100.0), knowing(1.0)) == FULL_WEIGHT for seed in range(20))


@pytest.mark.parametrize(("valid_rate", "bias"), [(0.94, 0.0), (1.0, 0.31), (0.0, 1.0)])
def test_a_good_model_with_unusable_answers_or_a_favourite_position_gets_no_say(
    valid_rate: float, bias: float
) -> None:
    good = cases(1, knowing(100.0), knowing(1.0))
    assert weigh_choices(good, valid_rate=valid_rate, bias=bias).weight == 0
    assert weigh_choices(good, valid_rate=0.95, bias=0.3).weight == FULL_WEIGHT


def test_where_the_model_gave_no_usable_answer_the_vectors_answer() -> None:
    silent = Case("w", (0.1, 0.9, 0.3), None, 1)
    assert silent.solved(FULL_WEIGHT)
    assert not silent.alone


def test_the_chance_of_a_gain_is_that_of_a_coin() -> None:
    assert chance_of_gain(0, 0) == 1
    assert chance_of_gain(5, 0) == pytest.approx(1 / 32)
    assert chance_of_gain(4, 0) == pytest.approx(1 / 16)
    assert chance_of_gain(9, 2) == pytest.approx((55 + 11 + 1) / 2048)


def test_bounds_are_those_of_wilson() -> None:
    # Computed by hand for 8 of 10: (0.8 + 0.19207) / 1.384146 +- 0.31322 / 1.384146.
    assert wilson(0.8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(1.0, 60) == pytest.approx((0.9398, 1.0), abs=1e-4)
    assert wilson(0.3, 0) == (0.0, 1.0)


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_bounds_hold_the_share_and_stay_in_range(right_of: tuple[int, int]) -> None:
    right, count = right_of
    low, high = wilson(right / count, count)
    assert 0 <= low <= right / count + 1e-12
    assert right / count - 1e-12 <= high <= 1


def test_position_bias_is_none_for_right_answers_and_all_for_one_position() -> None:
    right = [0, 1, 2, 3, 4] * 4
    assert position_bias(right, right, 5) == 0
    assert position_bias([3] * 20, right, 5) == pytest.approx(1)
    assert position_bias([0] * 10 + [0, 1, 2, 3, 4] * 2, right, 5) == pytest.approx(0.5)
    assert position_bias([], [], 5) == 0


@pytest.mark.parametrize(
    ("good", "unusable", "leaks", "weight"),
    [
        (25, 0, 0, FULL_WEIGHT),
        (24, 1, 0, FULL_WEIGHT),
        (23, 2, 0, 0.0),  # 92% usable
        (24, 0, 1, 0.0),
        (18, 0, 0, FULL_WEIGHT),  # at least 52% with 95% confidence
        (17, 0, 0, 0.0),
    ],
)
def test_what_a_model_writes_is_used_when_it_is_good_usable_and_free_of_the_prompt(
    good: int, unusable: int, leaks: int, weight: float
) -> None:
    assert written_weight(good=good, count=25, baseline=0.2, unusable=unusable, leaks=leaks) == weight


def test_what_a_model_writes_is_not_used_where_deterministic_work_may_be_as_good() -> None:
    assert written_weight(good=24, count=25, baseline=0.79, unusable=0, leaks=0) == FULL_WEIGHT
    assert written_weight(good=24, count=25, baseline=0.81, unusable=0, leaks=0) == 0
