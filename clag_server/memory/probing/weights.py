"""What an SLM's answers earn it: the weight of its word at each skill, 0 where the gain is not sure.

A weight is given for a gain over what stands in for the SLM, and only where luck is an unlikely reason of it. The
weight of a choice is picked on other worlds than those it is judged by: a weight that was tuned on its own
questions flatters itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from clag_server.memory.probing.statistics import chance_of_gain, wilson
from clag_server.memory.weighing import combine
from clag_server.types.competence import FULL_WEIGHT

__all__ = ["LEAST_VALID", "MOST_BIAS", "Case", "Weighed", "weigh_choices", "written_weight"]

WEIGHTS: Final = (0.25, 0.5, 1.0, 2.0, FULL_WEIGHT)
LEAST_VALID: Final = 0.95
"""Share of answers that must have a usable shape."""

MOST_BIAS: Final = 0.3
"""Largest preference of positions; a model without any is measured as about 0.1 on 120 answers, by chance."""

_MOST_CHANCE: Final = 0.05
"""A gain counts when it would be luck less often than this."""

_LEAST_WRITTEN: Final = 0.5
"""Least lower bound of the share of good annotations or links, whatever stands in for them."""

_FOLDS: Final = 5


@dataclass(frozen=True, slots=True)
class Case:
    """One choice question with its answers.

    Attributes:
        world: Cases of one world share their candidates and are judged together.
        cosines: By vectors, one a candidate.
        channel: By the SLM, in nats; None where its answer was unusable.
        right: Index of the right candidate.
    """

    world: str
    cosines: tuple[float, ...]
    channel: tuple[float, ...] | None
    right: int

    def solved(self, weight: float) -> bool:
        """Whether the right candidate is best when the SLM's word has this weight."""
        combined = self.cosines if self.channel is None else combine(self.cosines, self.channel, weight)
        return _first_best(combined) == self.right

    @property
    def alone(self) -> bool:
        """Whether the right candidate is best to the SLM by itself."""
        return self.channel is not None and _first_best(self.channel) == self.right


@dataclass(frozen=True, slots=True)
class Weighed:
    """The weight, and the share of right answers with weights that were picked on other worlds."""

    weight: float
    accuracy: float
    gained: int
    lost: int


def weigh_choices(cases: Sequence[Case], *, valid_rate: float, bias: float) -> Weighed:
    """Return the weight of the SLM's word at a choice.

    Args:
        cases: The questions with their answers.
        valid_rate: Share of usable answers.
        bias: Preference of positions, 0 to 1.
    """
    tried = [_Tried(case.world, {w: case.solved(w) for w in (0.0, *WEIGHTS)}, case.alone) for case in cases]
    worlds = list(dict.fromkeys(one.world for one in tried))
    gained = lost = solved = 0
    for fold in range(_FOLDS):
        held = set(worlds[fold::_FOLDS])
        weight = _best([one for one in tried if one.world not in held])
        for one in (one for one in tried if one.world in held):
            before, after = one.solved[0.0], one.solved[weight]
            solved += after
            gained += after and not before
            lost += before and not after
    sure = gained > lost and chance_of_gain(gained, lost) <= _MOST_CHANCE
    fit = valid_rate >= LEAST_VALID and bias <= MOST_BIAS
    return Weighed(_best(tried) if sure and fit else 0.0, solved / max(len(cases), 1), gained, lost)


def written_weight(*, good: int, count: int, baseline: float, unusable: int, leaks: int) -> float:
    """Return the weight of what the SLM writes: all or nothing.

    Args:
        good: Good answers.
        count: Questions.
        baseline: Share of good answers of the deterministic work that stands in.
        unusable: Answers without a usable shape.
        leaks: Answers with words of the prompt in them, or that repeat themselves.
    """
    low, _ = wilson(good / count, count)
    fit = unusable <= (1 - LEAST_VALID) * count and leaks == 0
    return FULL_WEIGHT if fit and low >= max(baseline, _LEAST_WRITTEN) else 0.0


@dataclass(frozen=True, slots=True)
class _Tried:
    """A case with every weight, and with the SLM alone."""

    world: str
    solved: Mapping[float, bool]
    alone: bool


def _best(tried: Sequence[_Tried]) -> float:
    """Return the weight with the most right answers, 0 where none is better than the vectors.

    Among equals the better of the two judges has the say: the largest weight where the SLM alone is at least as
    good as the vectors alone, else the smallest.
    """
    solved = {weight: sum(one.solved[weight] for one in tried) for weight in (0.0, *WEIGHTS)}
    most = max(solved.values())
    if solved[0.0] == most:
        return 0.0
    equals = [weight for weight in WEIGHTS if solved[weight] == most]
    return max(equals) if sum(one.alone for one in tried) >= solved[0.0] else min(equals)


def _first_best(scores: Sequence[float]) -> int:
    return max(range(len(scores)), key=lambda i: scores[i])
