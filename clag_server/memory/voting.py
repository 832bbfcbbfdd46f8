"""The SLM's vote on a routed episode: the channel score over the candidate clusters (design, section 7).

How likely is this episode's text after each cluster's profile? The SLM names no cluster, so it cannot name a wrong
one; its answer is one number a candidate, checked here. In this release the vote is recorded beside the vectors'
decision and has weight 0: a model gets its weight from a competence probe.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from clag_server.memory import prompts
from clag_server.memory.annotate import fallback_cause
from clag_server.models.api import ChoiceOption, ModelError, Priority, SlmEngine
from clag_server.types.cluster import Cluster
from clag_server.types.memory import DecidedBy, FallbackCause, RoutingDecision

TEXT_CHARACTERS = 1000
"""Of an episode's text that is scored; about the 256 tokens that the engine reads."""


def option(ns: int, cluster: Cluster, examples: Sequence[str]) -> ChoiceOption:
    """Return a cluster as an option of a choice. Examples are texts of its representatives."""
    head = prompts.cluster_head(cluster.title, cluster.summary, cluster.tags, examples)
    return ChoiceOption(key=f"{ns}/c{cluster.cluster}", head=head)


async def vote(
    slm: SlmEngine, text: str, decision: RoutingDecision, options: Mapping[int, ChoiceOption], *, deadline_s: float
) -> RoutingDecision:
    """Return the decision with channel scores and the SLM's vote, or with the cause why there is none.

    Candidates without an option (their cluster is gone) are not scored. An SLM that is away leaves the decision
    DEFERRED; an unusable answer leaves it to the vectors. The cluster never changes here.
    """
    scored = [c for c in decision.candidates if c.cluster in options]
    if len(scored) < 2:
        return decision
    try:
        result = await slm.choose(
            prompts.one_line(text, TEXT_CHARACTERS),
            [options[c.cluster] for c in scored],
            priority=Priority.ORGANIZE,
            deadline_s=deadline_s,
        )
    except ModelError as error:
        return without_vote(decision, fallback_cause(error))
    if len(result.scores) != len(scored) or not all(math.isfinite(score) for score in result.scores):
        return without_vote(decision, FallbackCause.INVALID_OUTPUT)
    channel = {c.cluster: score for c, score in zip(scored, result.scores, strict=True)}
    best = max(scored, key=lambda c: (channel[c.cluster], -c.cluster)).cluster
    return replace(
        decision,
        decided_by=DecidedBy.VECTOR,
        candidates=tuple(replace(c, channel=channel.get(c.cluster)) for c in decision.candidates),
        vote=best,
        fallback=FallbackCause.NOT_TRUSTED,
    )


def without_vote(decision: RoutingDecision, cause: FallbackCause) -> RoutingDecision:
    """Return the decision as the vectors alone made it: DEFERRED when the SLM was away, for good otherwise."""
    away = cause in {FallbackCause.UNAVAILABLE, FallbackCause.TIMEOUT}
    return replace(decision, decided_by=DecidedBy.DEFERRED if away else DecidedBy.VECTOR, fallback=cause)
