"""The SLM's choice among a question's best clusters: which of them holds the answer (design, sections 6.1 and 7).

It is shown the clusters with the best episodes, as in routing: how likely is the question after each cluster's
profile? Such a score names no cluster, so it cannot name a wrong one, and it prefers no position. z(best episode) +
weight x z(channel) says which cluster is favoured, by a bonus: its episodes rise in stage one and its memories in
stage two, and nothing is left out for it. So a model that is wrong costs little, and one that is right gains much.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from clag_server.catalog.api import EpisodeMembers
from clag_server.memory import prompts
from clag_server.memory.annotate import fallback_cause
from clag_server.memory.cluster_choice import ClusterChoice, WeighedCluster
from clag_server.memory.cluster_map import ClusterMap
from clag_server.memory.config import RetrieveConfig
from clag_server.memory.counters import Outcome
from clag_server.memory.namespace import NamespaceState
from clag_server.memory.routing_question import Questions
from clag_server.memory.selecting import EpisodeScores, best_clusters
from clag_server.memory.time_left import OutOfTime, Step, TimeLeft
from clag_server.memory.vote_forms import score_options
from clag_server.memory.weighing import combine, z_scores
from clag_server.models.api import ChoiceOption, ModelError, ModelTimeoutError, Priority, SlmEngine
from clag_server.types.competence import ChoiceForm, Skill
from clag_server.types.memory import FallbackCause
from clag_server.types.retrieval import Degradation, DegradationKind, RetrieveMode, RetrieveQuery, SlmUse

__all__ = ["UNTRUSTED_WEIGHT", "ClusterChooser", "rank_bonus"]

UNTRUSTED_WEIGHT: Final = 1.0
"""What the word of an SLM weighs that the probe does not trust, where a question asks for it all the same: as much
as the episodes'."""


class ClusterChooser:
    """Asks the SLM which of the best clusters answers a question.

    Args:
        slm: The model; None where there is none.
        state: The namespace.
        config: How many clusters are shown, and how long an answer is waited for.
    """

    def __init__(self, slm: SlmEngine | None, state: NamespaceState, config: RetrieveConfig) -> None:
        self._slm = slm
        self._state = state
        self._config = config

    def unasked(self, query: RetrieveQuery) -> FallbackCause:
        """Return why the SLM is not asked about a question; NONE where it is."""
        if query.slm_use is SlmUse.NEVER or query.mode is not RetrieveMode.TWO_STAGE:
            return FallbackCause.DISABLED
        if self._slm is None or not self._state.has_slm:
            return FallbackCause.DISABLED
        if query.slm_use is SlmUse.AUTO and not self._state.competence.trust.asked(Skill.SELECTION):
            return FallbackCause.NOT_TRUSTED
        return FallbackCause.NONE

    async def choose(self, query: RetrieveQuery, scored: EpisodeScores, time_left: TimeLeft) -> ClusterChoice:
        """Have the SLM choose where it is asked and there is time; else the choice tells why it had no say.

        Args:
            query: The question.
            scored: Its episodes.
            time_left: The question's time.
        """
        unasked = self.unasked(query)
        if unasked is not FallbackCause.NONE:
            wanted = query.slm_use is SlmUse.ALWAYS and query.mode is RetrieveMode.TWO_STAGE
            return _without(unasked, "there is no language model") if wanted else ClusterChoice(fallback=unasked)
        counters = self._state.counters
        try:
            self._check_pace()
            choice = await time_left.spend(Step.SLM, lambda: self._ask(query, scored))
        except OutOfTime as short:
            choice = _without(FallbackCause.TIMEOUT, str(short))
        except ModelError as error:
            if isinstance(error, ModelTimeoutError):
                self._state.durations.cut_off(Step.SLM, self._config.choice_wait_s)
            choice = _without(fallback_cause(error), str(error))
        if choice.chosen is not None:
            counters.add(Outcome.SLM_SELECTIONS)
        elif choice.fallback is not FallbackCause.NONE:
            counters.add_fallback(Outcome.SELECTION_FALLBACKS, choice.fallback)
        return choice

    def _check_pace(self) -> None:
        """Raise OutOfTime for a model that is mostly too slow; now and then it is tried all the same.

        Else every question would wait for it in vain.
        """
        durations, wait_s = self._state.durations, self._config.choice_wait_s
        if not durations.worth_trying(Step.SLM, wait_s):
            expected_s = durations.hoped_s(Step.SLM)
            durations.left_out(Step.SLM)
            raise OutOfTime(f"{Step.SLM.value} takes {expected_s:.3g} s, and {wait_s:.3g} s are waited for it")

    async def _ask(self, query: RetrieveQuery, scored: EpisodeScores) -> ClusterChoice:
        """Weigh the best clusters. Raises ModelError."""
        slm, known = self._slm, self._state.map.clusters
        if slm is None or not query.text.strip():
            return ClusterChoice()  # nothing to ask about
        asked = Questions(self._state)
        best, options = list[tuple[int, float]](), list[ChoiceOption]()
        for number, score in best_clusters(scored, self._config.choice_clusters):
            cluster = known.get(number)  # one may go while another is read
            if cluster is not None:
                best.append((number, score))
                options.append(await asked.whole(cluster))
        if len(best) < 2:
            return ClusterChoice()  # nothing to choose
        text = prompts.routing_note(query.text, task=query.task_hint)
        scores = await score_options(
            ChoiceForm.CHANNEL,
            slm,
            text,
            options,
            priority=Priority.INTERACTIVE,
            deadline_s=self._config.choice_wait_s,
        )
        weight = self._state.competence.trust.weight(Skill.SELECTION) or UNTRUSTED_WEIGHT
        combined = combine([score for _, score in best], scores, weight)
        weighed = [
            WeighedCluster(cluster, score, vote, both)
            for (cluster, score), vote, both in zip(best, z_scores(scores), combined, strict=True)
        ]
        # Among equals the cluster with the best episode stays first.
        return ClusterChoice(tuple(sorted(weighed, key=lambda one: -one.combined)), weight=weight)


def rank_bonus(
    members: EpisodeMembers, choice: ClusterChoice, cluster_map: ClusterMap, config: RetrieveConfig
) -> NDArray[np.float64] | None:
    """Return what the SLM's choice adds to the score of each candidate memory (n,); None where it had no say."""
    if choice.chosen is None:
        return None
    chosen = list(cluster_map.cluster_episodes.get(choice.chosen, ()))
    return np.where(np.isin(members.episodes, chosen), choice.strength * config.choice_rank_bonus, 0.0)


def _without(cause: FallbackCause, detail: str) -> ClusterChoice:
    """Return a choice in which the SLM was to have a say, and had none."""
    late = cause is FallbackCause.TIMEOUT
    kind = DegradationKind.SLM_SKIPPED if late else DegradationKind.SLM_UNAVAILABLE
    return ClusterChoice(fallback=cause, degradation=Degradation(kind, detail))
