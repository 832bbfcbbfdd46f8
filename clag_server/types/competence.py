"""What is known of how well the configured SLM does its jobs, and how far it is trusted with each of them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


class Skill(enum.IntEnum):
    """What an SLM may be asked for (numbers as in `clag.v1.ProbeSkill`)."""

    ROUTING = 1
    SELECTION = 2
    ANNOTATION = 3
    EVOLUTION = 4


class TrustPolicy(enum.StrEnum):
    """Who says how far the SLM is trusted."""

    PROBE = "probe"
    """The competence probe; nothing is trusted before it has run."""
    FULL = "full"
    """Every skill has the weight of a perfect model, whatever the probe says: for measurements."""
    NONE = "none"
    """The SLM organizes nothing."""


FULL_WEIGHT: Final = 4.0
"""Weight of a perfect model in z(cosine) + weight x z(channel)."""


@dataclass(frozen=True, slots=True)
class SkillResult:
    """How the SLM did at one skill; shares and bounds in [0, 1], bounds with 95% confidence.

    Attributes:
        skill: The skill.
        questions: Questions asked.
        accuracy: Share of right answers, with `low` and `high` as its bounds.
        low: Lower bound of the accuracy.
        high: Upper bound of the accuracy.
        baseline: Share of right answers by vector order (or the deterministic stand-in) on the same questions.
        valid_rate: Share of answers that had a usable shape.
        position_bias: How far answers prefer one position of the options, 0 (none) to 1 (always the same).
        weight: What the SLM's word weighs at this skill, 0 (it is not asked) to `FULL_WEIGHT`.
    """

    skill: Skill
    questions: int
    accuracy: float
    low: float
    high: float
    baseline: float
    valid_rate: float
    position_bias: float
    weight: float


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """Outcome of the competence probe for one model and one version of the questions and prompts."""

    model: str
    version: str
    skills: tuple[SkillResult, ...]
    decisions_per_second: float
    time_ns: int


@dataclass(frozen=True, slots=True)
class Trust:
    """How far the SLM is trusted at each skill: a weight, 0 where it is not asked."""

    weights: Mapping[Skill, float] = field(default_factory=dict)

    def weight(self, skill: Skill) -> float:
        """Weight at a skill, 0 (not asked) to `FULL_WEIGHT`."""
        return self.weights.get(skill, 0.0)

    def asked(self, skill: Skill) -> bool:
        """Whether the SLM is asked for this skill at all."""
        return self.weight(skill) > 0
