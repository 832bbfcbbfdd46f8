"""The SLM's word on a routed episode: one number a candidate cluster, weighed with the cosines.

How the SLM is asked is `vote_forms`: by the channel score (how likely is this episode's text after each cluster's
profile?) unless another form proved better for the model. In every form it can only mean a cluster that was
offered. An unusable answer leaves the episode where the vectors placed it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from clag_server.memory import prompts
from clag_server.memory.annotate import fallback_cause
from clag_server.memory.routing_candidates import Choice
from clag_server.memory.vote_forms import score_options
from clag_server.memory.weighing import combine
from clag_server.models.api import ChoiceOption, ModelError, Priority, SlmEngine
from clag_server.types.cluster import Cluster
from clag_server.types.competence import ChoiceForm
from clag_server.types.memory import DecidedBy, FallbackCause, RoutingDecision

TEXT_CHARACTERS = 1000
"""Of an episode's text that is scored; about the 256 tokens that the engine reads."""


def option(ns: int, cluster: Cluster, examples: Sequence[str], *, purpose: str = "") -> ChoiceOption:
    """Return a cluster as an option of a choice. Examples are notes as `prompts.routing_note` writes them."""
    head = prompts.cluster_head(cluster.title, cluster.summary, cluster.tags, examples, purpose=purpose)
    return ChoiceOption(key=f"{ns}/c{cluster.cluster}", head=head)


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about one episode.

    Attributes:
        text: The beginning of the episode, on one line.
        choice: What there is to choose.
        options: The candidates as the SLM sees them, by number; one whose cluster is gone has none.
    """

    text: str
    choice: Choice
    options: Mapping[int, ChoiceOption]


async def vote(
    slm: SlmEngine,
    question: Question,
    decision: RoutingDecision,
    *,
    weight: float,
    now_ns: int,
    deadline_s: float,
    form: ChoiceForm = ChoiceForm.CHANNEL,
) -> RoutingDecision:
    """Return what the SLM and the vectors settle on: the first candidate. Without a usable answer, why not.

    Args:
        slm: The model.
        question: What it is asked.
        decision: What the vectors decided.
        weight: What the SLM's word weighs, above 0.
        now_ns: When.
        deadline_s: Longest wait for the SLM.
        form: How it is asked.

    Returns:
        By the SLM, with every candidate scored; or by the vectors, DEFERRED (and to be asked again) when the SLM
        was away, for good when its answer could not be used or there was nothing to choose.
    """
    own, options = question.choice.own, question.options
    scored = [c for c in question.choice.candidates if c.cluster in options]
    if len(scored) < 2 or own not in options:
        return settled(decision, FallbackCause.NONE)
    try:
        scores = await score_options(
            form,
            slm,
            question.text,
            [options[c.cluster] for c in scored],
            priority=Priority.ORGANIZE,
            deadline_s=deadline_s,
        )
    except ModelError as error:
        return without_vote(decision, fallback_cause(error))
    weighed = combine([c.cosine for c in scored], scores, weight)
    full = [
        replace(c, channel=score, combined=combined)
        for c, score, combined in zip(scored, scores, weighed, strict=True)
    ]
    # Where nothing speaks for another cluster, the episode stays.
    ranked = sorted(full, key=lambda c: (-c.combined, c.cluster != own, c.cluster))
    best = ranked[0].cluster
    stays = best == own
    word = "" if form is ChoiceForm.CHANNEL else f" (by {form.name.lower()})"
    return replace(
        decision,
        decided_by=DecidedBy.SLM,
        candidates=tuple(ranked),
        vote=max(full, key=lambda c: (c.channel or 0.0, c.cluster == own, -c.cluster)).cluster,
        reason=f"confirmed by the SLM{word}; {decision.reason}"
        if stays
        else f"taken from c{own} to c{best} by the SLM's word{word}; before: {decision.reason}",
        provisional=False,
        time_ns=now_ns,
        founded=decision.founded and stays,
        fallback=FallbackCause.NONE,
        slm_weight=weight,
        awaits_slm=False,
    )


def settled(decision: RoutingDecision, cause: FallbackCause) -> RoutingDecision:
    """Return the decision as the vectors alone made it, for good."""
    return replace(decision, decided_by=DecidedBy.VECTOR, fallback=cause, provisional=False, awaits_slm=False)


def without_vote(decision: RoutingDecision, cause: FallbackCause) -> RoutingDecision:
    """Return the decision as the vectors alone made it: DEFERRED when the SLM was away, for good otherwise."""
    if cause not in {FallbackCause.UNAVAILABLE, FallbackCause.TIMEOUT}:
        return settled(decision, cause)
    return replace(decision, decided_by=DecidedBy.DEFERRED, fallback=cause, provisional=True, awaits_slm=True)
