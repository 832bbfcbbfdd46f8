"""From counted answers to a skill's marks."""

from __future__ import annotations

from dataclasses import dataclass

from clag_server.memory.probing.statistics import wilson
from clag_server.memory.probing.weights import written_weight
from clag_server.types.competence import Skill, SkillResult

__all__ = ["Tally", "marks"]


@dataclass(slots=True)
class Tally:
    """Counts the answers to the questions of a skill at which the SLM writes.

    Attributes:
        count: Questions that there are.
        baseline: Share of them that the deterministic work answers well.
        asked: Questions that were asked.
        good: Good answers.
        unusable: Answers without a usable shape.
        leaks: Answers with words of the prompt in them, or that repeat themselves.
    """

    count: int
    baseline: float
    asked: int = 0
    good: int = 0
    unusable: int = 0
    leaks: int = 0

    def add(self, *, usable: bool, good: bool, leaks: bool) -> bool:
        """Count an answer; returns whether a weight can still be earned if all the rest is good."""
        self.asked += 1
        self.unusable += not usable
        self.good += good
        self.leaks += leaks
        return self._weight(self.good + self.count - self.asked) > 0

    def marks(self, skill: Skill, *, bias: float) -> SkillResult:
        """Return the marks over the questions that were asked."""
        asked = max(self.asked, 1)
        return marks(
            skill,
            questions=self.asked,
            accuracy=self.good / asked,
            baseline=self.baseline,
            valid_rate=(self.asked - self.unusable) / asked,
            bias=bias,
            weight=self._weight(self.good) if self.asked == self.count else 0.0,
        )

    def _weight(self, good: int) -> float:
        return written_weight(
            good=good, count=self.count, baseline=self.baseline, unusable=self.unusable, leaks=self.leaks
        )


def marks(
    skill: Skill,
    *,
    questions: int,
    accuracy: float,
    baseline: float,
    valid_rate: float,
    bias: float,
    weight: float,
) -> SkillResult:
    """Return the marks of a skill, with the bounds of its accuracy."""
    low, high = wilson(accuracy, questions)
    return SkillResult(skill, questions, accuracy, low, high, baseline, valid_rate, bias, weight)
