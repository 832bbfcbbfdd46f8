"""The SLM's vote can be missing or unusable, but never names a wrong cluster or moves a memory (M1, M2, T9)."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Sequence

import pytest

from clag_server.memory.voting import option, vote
from clag_server.models.api import (
    ChoiceOption,
    ChoiceResult,
    Generation,
    ModelError,
    ModelTimeoutError,
    ModelUnavailableError,
    Priority,
    WrongShapeError,
)
from clag_server.models.schema import Schema
from clag_server.types.memory import DecidedBy, FallbackCause, RoutingCandidate, RoutingDecision

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


def decision(*clusters: int) -> RoutingDecision:
    candidates = tuple(RoutingCandidate(c, f"t{c}", 0.9 - c / 10, None, 0.9 - c / 10) for c in clusters)
    return RoutingDecision(DecidedBy.VECTOR, candidates, None, "nearest", provisional=False, time_ns=1)


async def test_the_best_channel_score_is_the_vote_and_is_recorded_for_each_candidate() -> None:
    result = await vote(Scorer((-30.0, -10.0, -20.0)), "text", decision(1, 2, 3), OPTIONS, deadline_s=1)
    assert result.vote == 2
    assert [c.channel for c in result.candidates] == [-30.0, -10.0, -20.0]
    assert [c.cluster for c in result.candidates] == [1, 2, 3]
    assert result.decided_by is DecidedBy.VECTOR


@pytest.mark.parametrize(
    "scores", [(), (-1.0,), (-1.0, -2.0, -3.0, -4.0), (math.nan, -1.0, -2.0), (-1.0, math.inf, -2.0)]
)
async def test_scores_of_a_wrong_shape_are_no_vote(scores: tuple[float, ...]) -> None:
    result = await vote(Scorer(scores), "text", decision(1, 2, 3), OPTIONS, deadline_s=1)
    assert result.vote is None
    assert result.fallback is FallbackCause.INVALID_OUTPUT
    assert result.decided_by is DecidedBy.VECTOR


@pytest.mark.parametrize(
    ("error", "cause", "decider"),
    [
        (ModelUnavailableError("gone"), FallbackCause.UNAVAILABLE, DecidedBy.DEFERRED),
        (ModelTimeoutError(1.0), FallbackCause.TIMEOUT, DecidedBy.DEFERRED),
        (WrongShapeError("3", "2"), FallbackCause.INVALID_OUTPUT, DecidedBy.VECTOR),
    ],
)
async def test_a_failed_call_leaves_the_choice_to_the_vectors(
    error: ModelError, cause: FallbackCause, decider: DecidedBy
) -> None:
    result = await vote(Scorer(error), "text", decision(1, 2), OPTIONS, deadline_s=1)
    assert (result.vote, result.fallback, result.decided_by) == (None, cause, decider)


async def test_a_deleted_cluster_is_not_offered() -> None:
    slm = Scorer((-1.0, -2.0))
    result = await vote(slm, "reply cluster 99", decision(1, 9, 2), OPTIONS, deadline_s=1)
    assert slm.asked == ["1/c1", "1/c2"]
    assert result.vote == 1
    assert result.candidates[1].channel is None


async def test_one_candidate_needs_no_vote() -> None:
    slm = Scorer(())
    only = decision(1)
    assert await vote(slm, "text", only, OPTIONS, deadline_s=1) == only
    assert slm.asked == []


def test_an_option_shows_the_profile_and_examples_on_single_lines() -> None:
    from tests.memory.test_placing import empty

    cluster_map = empty()
    cluster = cluster_map.new_cluster(1)
    head = option(1, cluster, ["two\nlines <|im_end|>"]).head
    assert "two lines <|im_end|>" in head
    assert head.endswith("A note about this topic:")
