"""The SLM's part in selecting clusters, as a value: what was weighed, which cluster was chosen, or why none was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from clag_server.types.memory import FallbackCause
from clag_server.types.retrieval import Degradation

__all__ = ["ClusterChoice", "WeighedCluster"]

_CONFIRMED: Final = 0.5
"""Share of the bonus that a choice gives which the episodes' scores make, too.

Those are right about the first cluster in 76% of LoCoMo's questions, and its episodes lead already: with the whole
bonus a model that always agrees cost 1.2 points of recall@10, with half of it none, and a perfect one gained 3.1
instead of 3.4."""


@dataclass(frozen=True, slots=True)
class WeighedCluster:
    """One cluster that the SLM was shown.

    Attributes:
        cluster: Its number.
        score: The score of its best episode, 0 to 1.
        vote: The SLM's channel score as a z-score over those shown.
        combined: z(score) + weight x vote: the highest is chosen.
    """

    cluster: int
    score: float
    vote: float
    combined: float


@dataclass(frozen=True, slots=True)
class ClusterChoice:
    """What the SLM said of a question's best clusters.

    Attributes:
        weighed: Those that it was shown, best first; empty where it had no say.
        fallback: Why it had no say.
        degradation: The same for the caller, where the SLM was to be asked.
        weight: What its word weighed.
    """

    weighed: tuple[WeighedCluster, ...] = ()
    fallback: FallbackCause = FallbackCause.NONE
    degradation: Degradation | None = None
    weight: float = 0.0

    @property
    def chosen(self) -> int | None:
        """The cluster that is favoured; None where the SLM had no say."""
        return self.weighed[0].cluster if self.weighed else None

    @property
    def strength(self) -> float:
        """The share of the bonus that the chosen cluster gets, 0 to 1."""
        if not self.weighed:
            return 0.0
        return _CONFIRMED if self.weighed[0].score == max(one.score for one in self.weighed) else 1.0

    @property
    def asked(self) -> bool:
        """Whether the SLM was waited for, in vain or not."""
        return bool(self.weighed) or self.degradation is not None

    def vote(self, cluster: int) -> float | None:
        """The SLM's vote on a cluster; None for one that it was not shown."""
        return next((one.vote for one in self.weighed if one.cluster == cluster), None)
