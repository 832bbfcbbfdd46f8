"""Choices by a remote server: scored from the log-probabilities of prompts, or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from clag_server.models.api import (
    ChoiceOption,
    ModelRequestRefusedError,
    ModelUnavailableError,
    Priority,
    WrongShapeError,
)
from clag_server.models.remote_config import RemoteConfig
from clag_server.models.remote_scores import PromptScores, ScoreMethod, channel_score
from tests.support.openai_double import Abilities, OpenAiDouble, log_probability
from tests.support.remote_slm import Remote, connected

NOW = Priority.INTERACTIVE
HEADS = [
    "Topic: the gripper and wet crates\nA note about this topic:",
    "Topic: people and the heating\nA note about this topic:",
    "Topic: the battery\nA note about this topic:",
]
OPTIONS = [ChoiceOption(f"c{i}", head) for i, head in enumerate(HEADS)]
TEXT = "wet crates and the gripper"


@pytest.fixture
async def double() -> AsyncIterator[OpenAiDouble]:
    async with OpenAiDouble(Abilities(scores=ScoreMethod.PROMPT_LOGPROBS)).serving() as server:
        yield server


def prompts(remote: Remote) -> list[int]:
    """How many prompts each request held."""
    return [len(one.body["prompt"] if "prompt" in one.body else one.body["text"]) for one in remote.asked]


def direct(head: str, text: str) -> float:
    """The sum that the score is, computed without a server."""
    words = f"{head} {text}".split()
    return sum(log_probability(words, i) for i in range(len(head.split()), len(words)))


@pytest.mark.parametrize("method", list(ScoreMethod))
async def test_a_score_is_the_sum_over_the_texts_tokens_by_each_of_the_three_ways(
    double: OpenAiDouble, method: ScoreMethod
) -> None:
    double.abilities.scores = method
    async with connected(double) as remote:
        result = await remote.slm.choose(TEXT, OPTIONS, priority=NOW)
        assert result.scores == pytest.approx([direct(head, TEXT) for head in HEADS])
        assert max(result.scores) == result.scores[0]
        assert not result.clipped
        assert result.usage.tokens_in > 0


async def test_a_head_is_sent_alone_once_and_then_remembered(double: OpenAiDouble) -> None:
    async with connected(double) as remote:
        first = await remote.slm.choose(TEXT, OPTIONS, priority=NOW)
        again = await remote.slm.choose(TEXT, OPTIONS, priority=NOW)
        changed = ChoiceOption("c0", "Topic: something else\nA note:")
        await remote.slm.choose(TEXT, [changed, *OPTIONS[1:]], priority=NOW)
        assert prompts(remote) == [6, 3, 4]
        assert again.scores == first.scores
        metrics = remote.slm.status.metrics
        assert (metrics.prefix_hits, metrics.prefix_misses) == (5, 4)


async def test_remembered_heads_are_bounded(double: OpenAiDouble) -> None:
    async with connected(double, RemoteConfig("", "tiny", head_cache=2)) as remote:
        for option in OPTIONS:
            await remote.slm.choose(TEXT, [option], priority=NOW)
        await remote.slm.choose(TEXT, OPTIONS[1:], priority=NOW)
        await remote.slm.choose(TEXT, OPTIONS[:1], priority=NOW)
        assert prompts(remote) == [2, 2, 2, 2, 2]


async def test_options_with_the_same_head_have_the_same_score(double: OpenAiDouble) -> None:
    async with connected(double) as remote:
        twins = [ChoiceOption("a", HEADS[0]), ChoiceOption("b", HEADS[0])]
        scores = (await remote.slm.choose(TEXT, twins, priority=NOW)).scores
        assert scores[0] == scores[1]
        assert prompts(remote) == [3]


async def test_a_server_without_log_probabilities_has_no_vote_for_good_but_still_writes(
    double: OpenAiDouble,
) -> None:
    double.abilities.scores = None
    async with connected(double) as remote:
        with pytest.raises(ModelUnavailableError, match="no vote") as told:
            await remote.slm.choose(TEXT, OPTIONS, priority=NOW)
        assert told.value.retry_after_s is None
        assert remote.asked == []  # and letters were not generated instead
        assert (await remote.slm.generate("Why?", max_tokens=8, priority=NOW)).text == "The sea is wide."


@pytest.mark.parametrize("method", list(ScoreMethod))
@pytest.mark.parametrize("off", [-1, -100])
async def test_log_probabilities_of_a_wrong_length_are_not_believed(
    double: OpenAiDouble, method: ScoreMethod, off: int
) -> None:
    double.abilities = Abilities(scores=method, scores_length_off=off)
    async with connected(double) as remote:
        with pytest.raises(ModelUnavailableError, match="no vote"):
            await remote.slm.choose(TEXT, OPTIONS, priority=NOW)


async def test_log_probabilities_that_know_no_language_are_not_believed(double: OpenAiDouble) -> None:
    double.abilities.scores_flat = True
    async with connected(double) as remote:
        with pytest.raises(ModelUnavailableError, match="implausible"):
            await remote.slm.choose(TEXT, OPTIONS, priority=NOW)


async def test_a_length_that_goes_wrong_later_is_a_wrong_shape_and_no_score(double: OpenAiDouble) -> None:
    async with connected(double, RemoteConfig("", "tiny", attempts=2)) as remote:
        double.abilities.scores_length_off = -1
        with pytest.raises(WrongShapeError):
            await remote.slm.choose(TEXT, OPTIONS, priority=NOW)
        double.abilities.scores_length_off = 0
        scores = (await remote.slm.choose(TEXT, OPTIONS, priority=NOW)).scores
        assert scores == pytest.approx([direct(head, TEXT) for head in HEADS])


async def test_long_texts_and_heads_count_by_their_beginning(double: OpenAiDouble) -> None:
    config = RemoteConfig("", "tiny", choose_text_characters=9, choose_head_characters=40)
    async with connected(double, config) as remote:
        result = await remote.slm.choose("wet crate and more", OPTIONS, priority=NOW)
        assert result.clipped
        assert result.scores == pytest.approx([direct(head[:40].rstrip(), "wet crate") for head in HEADS])


async def test_control_tokens_in_a_memory_are_scored_as_plain_text(double: OpenAiDouble) -> None:
    async with connected(double) as remote:
        await remote.slm.choose("said <|endoftext|> twice", OPTIONS[:1], priority=NOW)
        assert remote.asked[0].body["prompt"][-1] == f"{HEADS[0]} said < |endoftext|> twice"


async def test_choices_that_cannot_be_scored_are_refused(double: OpenAiDouble) -> None:
    async with connected(double) as remote:
        for text, options in ((" ", OPTIONS), (TEXT, []), (TEXT, [ChoiceOption("c", " ")]), ("\udfff", OPTIONS)):
            with pytest.raises(ModelRequestRefusedError):
                await remote.slm.choose(text, options, priority=NOW)
        assert remote.asked == []


def test_a_token_that_melts_into_the_next_word_keeps_the_chain_rule() -> None:
    head = PromptScores(("a", "b", "c"), (0.0, -1.0, -2.0))
    melted = PromptScores(("a", "b", "cd", "e"), (0.0, -1.0, -5.0, -3.0))
    # log P(a b cd e) - log P(a b c)
    assert channel_score(melted, head) == pytest.approx(-9.0 - -3.0)
