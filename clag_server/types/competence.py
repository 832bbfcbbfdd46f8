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


class ChoiceForm(enum.IntEnum):
    """How an SLM is asked which cluster a memory belongs to (numbers as in `clag.v1.ChoiceForm`)."""

    CHANNEL = 1
    """How likely is the memory after each cluster's profile? It names no cluster and has no position."""
    LETTER = 2
    """The clusters are shown with letters, in shuffled order; how likely is each letter as the answer?"""
    JSON = 3
    """The same, but the letter is written, as a JSON object of a bounded shape."""


class ChoiceSetting(enum.StrEnum):
    """Which form votes have (a setting)."""

    AUTO = "auto"
    """The one that the competence probe found best for this model."""
    CHANNEL = "channel"
    LETTER = "letter"
    JSON = "json"

    @property
    def form(self) -> ChoiceForm | None:
        """The form that it fixes; None leaves it to the probe."""
        return None if self is ChoiceSetting.AUTO else ChoiceForm[self.name]


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
class FormResult:
    """How the SLM did at the routing questions in one form; shares and bounds in [0, 1].

    Attributes:
        form: The form.
        questions: Questions asked: fewer than there are where the form could not become the best any more.
        accuracy: Share of right answers, with `low` and `high` as its bounds (95% confidence).
        low: Lower bound of the accuracy.
        high: Upper bound of the accuracy.
        baseline: Share of right answers by vector order on the same questions.
        valid_rate: Share of answers that had a usable shape.
        position_bias: How far answers prefer one position of the options, 0 (none) to 1 (always the same).
        weight: What a vote in this form weighs, 0 (it would not be asked) to `FULL_WEIGHT`.
    """

    form: ChoiceForm
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
    """Outcome of the competence probe for one model and one version of the questions and prompts.

    `form` is the best form of votes for this model; its marks are those of routing. `forms` has all tried.
    """

    model: str
    version: str
    skills: tuple[SkillResult, ...]
    decisions_per_second: float
    time_ns: int
    forms: tuple[FormResult, ...] = ()
    form: ChoiceForm = ChoiceForm.CHANNEL


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
