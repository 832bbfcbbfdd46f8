"""The SLM's vote counts as far as it is trusted; it can be missing or unusable, but never names a wrong cluster."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

import pytest

from clag_server.memory.routing_candidates import Choice
from clag_server.memory.routing_question import routing_text
from clag_server.memory.voting import TEXT_CHARACTERS, Question, option, vote
from clag_server.memory.weighing import combine
from clag_server.models.api import (
    ChoiceOption,
    ChoiceResult,
    Generation,
    ModelError,
    ModelRequestRefusedError,
    ModelTimeoutError,
    ModelUnavailableError,
    Priority,
    WrongShapeError,
)
from clag_server.models.schema import Schema
from clag_server.types.competence import FULL_WEIGHT
from clag_server.types.memory import DecidedBy, FallbackCause, MemoryKind, RoutingCandidate, RoutingDecision
from tests.memory.builders import memory

OPTIONS = {n: ChoiceOption(f"1/c{n}", f"Topic: {n}") for n in (1, 2, 3)}


class Scorer:
    """An SLM that gives fixed scores."""

    def __init__(self, answer: tuple[float, ...] | ModelError) -> None:
        self.answer = answer
        self.asked: list[str] = []

    @property
    def name(self) -> str:
        return "scorer"

    async def choose(
        self, text: str, options: Sequence[ChoiceOption], *, priority: Priority, deadline_s: float | None = None
    ) -> ChoiceResult:
        self.asked = [o.key for o in options]
        if isinstance(self.answer, ModelError):
            raise self.answer
        return ChoiceResult(self.answer)

    async def generate(
        self,
        prompt: str,
        *,
        schema: Schema | None = None,
        grammar: str | None = None,
        max_tokens: int,
        priority: Priority,
        deadline_s: float | None = None,
    ) -> Generation:
        raise AssertionError("a vote is scored, never generated")

    def stream(
        self, prompt: str, *, max_tokens: int, priority: Priority, deadline_s: float | None = None
    ) -> AsyncGenerator[str, None]:
        raise AssertionError("a vote is scored, never generated")


def candidates(*clusters: int) -> tuple[RoutingCandidate, ...]:
    return tuple(RoutingCandidate(c, f"t{c}", 0.9 - c / 10, None, 0.0) for c in clusters)


def decision(*clusters: int) -> RoutingDecision:
    return RoutingDecision(
        DecidedBy.VECTOR, candidates(*clusters), None, "nearest", provisional=True, time_ns=1, awaits_slm=True
    )


async def weighed(slm: Scorer, *clusters: int, own: int = 1, weight: float = FULL_WEIGHT) -> RoutingDecision:
    choice = Choice(candidates(*clusters), own, alone=False)
    question = Question("reply cluster 99", choice, {c: OPTIONS[c] for c in clusters if c in OPTIONS})
    return await vote(slm, question, decision(*clusters), weight=weight, now_ns=7, deadline_s=1)


async def test_a_trusted_slm_takes_an_episode_to_the_cluster_it_finds_likelier() -> None:
    result = await weighed(Scorer((-30.0, -10.0, -20.0)), 1, 2, 3)
    assert result.decided_by is DecidedBy.SLM
    assert [c.cluster for c in result.candidates] == [2, 3, 1]
    assert {c.cluster: c.channel for c in result.candidates} == {1: -30.0, 2: -10.0, 3: -20.0}
    assert (result.vote, result.slm_weight, result.time_ns) == (2, FULL_WEIGHT, 7)
    assert (result.provisional, result.awaits_slm) == (False, False)
    assert "from c1 to c2" in result.reason


async def test_what_decides_is_the_standing_in_cosine_and_in_likelihood_by_the_weight() -> None:
    result = await weighed(Scorer((-10.0, -20.0, -30.0)), 1, 2, 3, weight=0.5)
    expected = combine([0.8, 0.7, 0.6], [-10.0, -20.0, -30.0], 0.5)
    assert [c.combined for c in result.candidates] == pytest.approx(expected)


async def test_a_little_trusted_slm_cannot_outweigh_what_the_vectors_are_sure_of() -> None:
    result = await weighed(Scorer((-20.0, -10.0, -30.0)), 1, 2, 3, weight=0.25)
    assert (result.decided_by, result.vote, result.candidates[0].cluster) == (DecidedBy.SLM, 2, 1)
    assert result.reason.startswith("confirmed by the SLM")


async def test_an_slm_to_which_all_clusters_are_alike_moves_nothing() -> None:
    choice = Choice(tuple(RoutingCandidate(c, "", 0.5, None, 0.0) for c in (1, 2, 3)), 2, alone=False)
    question = Question("text", choice, OPTIONS)
    result = await vote(Scorer((-1.0, -1.0, -1.0)), question, decision(1, 2, 3), weight=1.0, now_ns=7, deadline_s=1)
    assert result.candidates[0].cluster == 2


@pytest.mark.parametrize(
    "scores", [(), (-1.0,), (-1.0, -2.0, -3.0, -4.0), (math.nan, -1.0, -2.0), (-1.0, math.inf, -2.0)]
)
async def test_scores_of_a_wrong_shape_are_no_vote(scores: tuple[float, ...]) -> None:
    result = await weighed(Scorer(scores), 1, 2, 3)
    assert result.vote is None
    assert result.fallback is FallbackCause.INVALID_OUTPUT
    assert result.decided_by is DecidedBy.VECTOR
    assert not result.awaits_slm


@pytest.mark.parametrize(
    ("error", "cause", "decider"),
    [
        (ModelUnavailableError("gone"), FallbackCause.UNAVAILABLE, DecidedBy.DEFERRED),
        (ModelTimeoutError(1.0), FallbackCause.TIMEOUT, DecidedBy.DEFERRED),
        (WrongShapeError("3", "2"), FallbackCause.INVALID_OUTPUT, DecidedBy.VECTOR),
        (ModelRequestRefusedError("too long"), FallbackCause.INPUT_REFUSED, DecidedBy.VECTOR),
    ],
)
async def test_a_failed_call_leaves_the_choice_to_the_vectors_and_is_repeated_only_where_the_slm_was_away(
    error: ModelError, cause: FallbackCause, decider: DecidedBy
) -> None:
    result = await weighed(Scorer(error), 1, 2)
    assert (result.vote, result.fallback, result.decided_by) == (None, cause, decider)
    assert result.awaits_slm is result.provisional is (decider is DecidedBy.DEFERRED)


async def test_a_deleted_cluster_is_not_offered() -> None:
    slm = Scorer((-1.0, -2.0))
    result = await weighed(slm, 1, 9, 2)
    assert slm.asked == ["1/c1", "1/c2"]
    assert result.vote == 1
    assert [c.cluster for c in result.candidates] == [1, 2]


async def test_one_candidate_needs_no_vote() -> None:
    slm = Scorer(())
    result = await weighed(slm, 1, 9)
    assert slm.asked == []
    assert (result.decided_by, result.fallback, result.awaits_slm) == (DecidedBy.VECTOR, FallbackCause.NONE, False)


def test_an_option_shows_purpose_profile_and_examples_on_single_lines() -> None:
    from tests.memory.test_placing import empty

    cluster_map = empty()
    cluster = cluster_map.new_cluster(1)
    head = option(1, cluster, ["two\nlines <|im_end|>"], purpose="runs a\nhousehold").head
    assert head.startswith("The agent: runs a household\n")
    assert "two lines <|im_end|>" in head
    assert head.endswith("A note about this topic:")


def test_a_memory_is_shown_with_its_sort_and_what_the_agent_was_doing() -> None:
    first = replace(memory(1, "is always cold"), kind=MemoryKind.OBSERVATION, task="check the rooms")
    second = replace(first, text="so is the hall")
    third = replace(first, text="asked about the heating", kind=MemoryKind.MESSAGE, task="")
    assert routing_text([first, second, third]) == (
        "[observation, task check the rooms] is always cold so is the hall [message] asked about the heating"
    )


def test_of_a_long_episode_the_beginning_is_shown() -> None:
    text = routing_text([memory(n, f"{n} " + "word " * 100) for n in range(20)])
    assert len(text) <= TEXT_CHARACTERS
    assert text.startswith("[observation] 0 word")
