"""Texts and objects from a remote model server, whatever way of asking it understands."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from clag_server.models.api import (
    EngineState,
    ModelRequestRefusedError,
    ModelUnavailableError,
    Priority,
    UnusableCause,
    UnusableOutputError,
)
from clag_server.models.remote_chat import Form, GrammarField
from clag_server.models.remote_config import RemoteConfig
from clag_server.models.schema import ListOf, Object, Text, grammar_of, json_schema_of
from tests.support.openai_double import Abilities, OpenAiDouble, close, cut_stream, status
from tests.support.remote_slm import Remote, connected

NOW = Priority.INTERACTIVE
NOTE = Object((("title", Text(1, 40)), ("tags", ListOf(Text(1, 20), 0, 3))))
ANSWER = '{"title": "Wet crate", "tags": ["gripper"]}'
VALUE = {"title": "Wet crate", "tags": ["gripper"]}


@pytest.fixture
async def double() -> AsyncIterator[OpenAiDouble]:
    async with OpenAiDouble().serving() as server:
        yield server


async def test_a_server_that_honours_json_schemas_gets_the_schema(double: OpenAiDouble) -> None:
    double.abilities, double.answer = Abilities(json_schema=True, strict=True), lambda _: ANSWER
    async with connected(double) as remote:
        answer = await remote.slm.generate("Describe it.", schema=NOTE, max_tokens=60, priority=NOW)
        assert answer.value == VALUE
        assert answer.finished
        sent = remote.asked[0].body
        assert sent["response_format"]["json_schema"]["schema"] == json_schema_of(NOTE)
        assert (sent["temperature"], sent["max_tokens"]) == (0, 60)
        assert remote.asked[0].prompt == "Describe it."


@pytest.mark.parametrize(
    "text",
    [
        f"Sure! Here it is:\n```json\n{ANSWER}\n```\nHope it helps {{or not}}.",
        f"<think>An object like {{}}?</think>\n{ANSWER}",
        ANSWER + ANSWER,
    ],
)
async def test_a_schema_that_is_accepted_and_ignored_is_not_relied_on(double: OpenAiDouble, text: str) -> None:
    double.answer = lambda _: text
    async with connected(double) as remote:
        answer = await remote.slm.generate("Describe it.", schema=NOTE, max_tokens=60, priority=NOW)
        assert answer.value == VALUE
        assert "response_format" not in remote.asked[0].body
        assert remote.asked[0].prompt.startswith("Describe it.\n\nAnswer with one JSON value only")
        assert json.dumps(json_schema_of(NOTE)) in remote.asked[0].prompt


async def test_a_server_that_only_knows_json_objects_is_asked_for_one_and_told_the_schema(
    double: OpenAiDouble,
) -> None:
    double.abilities, double.answer = Abilities(json_object=True), lambda _: ANSWER
    async with connected(double) as remote:
        assert (await remote.slm.generate("It?", schema=NOTE, max_tokens=60, priority=NOW)).value == VALUE
        assert remote.asked[0].body["response_format"] == {"type": "json_object"}
        assert json.dumps(json_schema_of(NOTE)) in remote.asked[0].prompt


@pytest.mark.parametrize("field", list(GrammarField))
async def test_a_grammar_is_sent_under_the_name_that_the_server_knows(
    double: OpenAiDouble, field: GrammarField
) -> None:
    double.abilities, double.answer = Abilities(grammar_field=field, strict=True), lambda _: ANSWER
    async with connected(double) as remote:
        answer = await remote.slm.generate("It?", grammar='root ::= "x"', max_tokens=9, priority=NOW)
        assert (answer.text, answer.value) == (ANSWER, None)
        await remote.slm.generate("It?", schema=NOTE, max_tokens=9, priority=NOW)
        sent = [one.body[field.value] for one in remote.asked]
        if field is GrammarField.STRUCTURED_OUTPUTS:
            sent = [one["grammar"] for one in sent]
        assert sent == ['root ::= "x"', grammar_of(NOTE)]


async def test_a_form_that_is_refused_for_one_schema_is_not_tried_for_it_again(double: OpenAiDouble) -> None:
    double.abilities, double.answer = Abilities(json_schema=True), lambda _: ANSWER
    async with connected(double) as remote:
        double.faults.append(status(400, "maxItems is not supported"))
        for _ in range(2):
            assert (await remote.slm.generate("It?", schema=NOTE, max_tokens=60, priority=NOW)).value == VALUE
        other = Object((("title", Text(1, 40)),))
        with pytest.raises(UnusableOutputError):
            await remote.slm.generate("It?", schema=other, max_tokens=60, priority=NOW)
        by_schema = ["response_format" in one.body for one in remote.asked]
        assert by_schema == [True, False, False, True]


async def test_a_prompt_that_is_refused_in_every_form_is_refused_and_the_forms_are_kept(
    double: OpenAiDouble,
) -> None:
    double.abilities, double.answer = Abilities(json_schema=True), lambda _: ANSWER
    async with connected(double) as remote:
        double.faults.extend([status(400, "too long")] * 2)
        with pytest.raises(ModelRequestRefusedError, match="too long"):
            await remote.slm.generate("It?", schema=NOTE, max_tokens=60, priority=NOW)
        await remote.slm.generate("It?", schema=NOTE, max_tokens=60, priority=NOW)
        assert "response_format" in remote.asked[-1].body


@pytest.mark.parametrize(
    ("text", "reason", "cause"),
    [
        ('{"title": "Wet cr', "length", UnusableCause.CUT),
        ("I would rather talk about the sea.", "stop", UnusableCause.NOT_JSON),
        ("", "stop", UnusableCause.NOT_JSON),
        ('{"title": "Wet crate"}', "stop", UnusableCause.WRONG_FIELDS),
        ('{"title": "", "tags": []}', "stop", UnusableCause.OUT_OF_BOUNDS),
    ],
)
async def test_an_object_that_is_none_is_told_with_its_cause(
    double: OpenAiDouble, text: str, reason: str, cause: UnusableCause
) -> None:
    double.answer, double.finish_reason = lambda _: text, reason
    async with connected(double) as remote:
        with pytest.raises(UnusableOutputError) as told:
            await remote.slm.generate("It?", schema=NOTE, max_tokens=6, priority=NOW)
        assert told.value.cause is cause
        assert remote.slm.status.metrics.failures == {f"unusable_{cause.value}": 1}


async def test_quotes_and_line_ends_inside_a_text_do_not_cost_the_answer(double: OpenAiDouble) -> None:
    double.answer = lambda _: '{"title": "The \\"wet\\" crate\\n", "tags": ["a\\\\b"]}'
    async with connected(double) as remote:
        answer = await remote.slm.generate("It?", schema=NOTE, max_tokens=60, priority=NOW)
        assert answer.value == {"title": "The 'wet' crate ", "tags": ["a/b"]}


async def test_a_text_that_the_token_limit_cut_is_marked_unfinished(double: OpenAiDouble) -> None:
    double.finish_reason = "length"
    async with connected(double) as remote:
        answer = await remote.slm.generate("Why?", max_tokens=4, priority=NOW)
        assert (answer.text, answer.finished) == ("The sea is wide.", False)


async def test_an_answer_tells_what_it_cost(double: OpenAiDouble) -> None:
    async with connected(double) as remote:
        usage = (await remote.slm.generate("Why is that?", max_tokens=8, priority=NOW)).usage
        assert (usage.tokens_in, usage.tokens_out) == (3, 4)
        assert usage.compute_s > 0
        metrics = remote.slm.status.metrics
        assert (metrics.calls, metrics.tokens_in, metrics.tokens_out) == (1, 3, 4)


async def test_control_tokens_in_a_prompt_reach_the_server_as_plain_text(double: OpenAiDouble) -> None:
    async with connected(double) as remote:
        await remote.slm.generate("log said <|im_start|>system </s> [INST]", max_tokens=8, priority=NOW)
        assert remote.asked[0].prompt == "log said < |im_start|>system < /s> [ INST]"


async def test_a_server_that_refuses_unknown_fields_is_asked_without_them(double: OpenAiDouble) -> None:
    double.abilities.strict = True
    async with connected(double) as remote:
        await remote.slm.generate("Why?", max_tokens=8, priority=NOW)
        assert set(remote.asked[0].body) == {"model", "messages", "max_tokens", "temperature"}


async def test_a_server_with_a_switch_for_reasoning_has_it_off(double: OpenAiDouble) -> None:
    async with connected(double) as remote:
        await remote.slm.generate("Why?", max_tokens=8, priority=NOW)
        assert remote.asked[0].body["chat_template_kwargs"] == {"enable_thinking": False}


async def test_what_cannot_be_asked_is_refused_before_anything_is_sent(double: OpenAiDouble) -> None:
    async with connected(double, RemoteConfig("", "tiny", prompt_characters=100)) as remote:
        for prompt, tokens in ((" ", 5), ("Why?", 0), ("x" * 101, 5), ("\ud800", 5)):
            with pytest.raises(ModelRequestRefusedError):
                await remote.slm.generate(prompt, max_tokens=tokens, priority=NOW)
        with pytest.raises(ModelRequestRefusedError, match="exclude"):
            await remote.slm.generate("It?", schema=NOTE, grammar="root ::= x", max_tokens=5, priority=NOW)
        assert remote.asked == []


async def test_calls_wait_while_the_server_is_asked_what_it_can_do(double: OpenAiDouble) -> None:
    async with connected(double, ready=False) as remote:
        assert remote.slm.status.state is EngineState.LOADING
        assert (await remote.slm.generate("Why?", max_tokens=8, priority=NOW)).text == "The sea is wide."


async def test_a_server_is_asked_once_what_it_can_do(double: OpenAiDouble) -> None:
    double.abilities = Abilities(json_schema=True, json_object=True, grammar_field=GrammarField.EBNF)
    async with connected(double) as remote:
        found = await remote.link.capabilities()
        assert found.forms == set(Form)
        for _ in range(3):
            await remote.slm.generate("Why?", max_tokens=8, priority=NOW)
        assert len(remote.asked) == 3


async def pieces(remote: Remote, prompt: str = "Why?") -> list[str]:
    return [piece async for piece in remote.slm.stream(prompt, max_tokens=20, priority=NOW)]


async def test_a_streamed_text_arrives_in_pieces(double: OpenAiDouble) -> None:
    async with connected(double) as remote:
        assert await pieces(remote) == ["The", " sea", " is", " wide."]
        assert remote.link.gate.in_flight == 0


async def test_a_server_that_cannot_stream_gives_the_whole_text_as_one_piece(double: OpenAiDouble) -> None:
    double.streams = False
    async with connected(double) as remote:
        assert await pieces(remote) == ["The sea is wide."]


async def test_reasoning_is_kept_out_of_a_streamed_text(double: OpenAiDouble) -> None:
    async with connected(double) as remote:
        double.answer = lambda _: "<think> What is wide? </think> The sea."
        assert "".join(await pieces(remote)).strip() == "The sea."
        double.answer = lambda _: "<th is no mark"
        assert "".join(await pieces(remote)) == "<th is no mark"


async def test_a_stream_that_breaks_off_is_an_error_after_what_was_shown(double: OpenAiDouble) -> None:
    async with connected(double) as remote:
        double.faults.append(cut_stream("The", " sea"))
        stream = remote.slm.stream("Why?", max_tokens=20, priority=NOW)
        assert [await anext(stream), await anext(stream)] == ["The", " sea"]
        with pytest.raises(ModelUnavailableError, match="stream ended before"):
            await anext(stream)
        assert len(remote.asked) == 1  # another try would have shown the beginning twice


async def test_a_stream_that_fails_before_its_first_piece_is_tried_again(double: OpenAiDouble) -> None:
    async with connected(double) as remote:
        double.faults.extend([status(503), close, cut_stream()])
        assert "".join(await pieces(remote)) == "The sea is wide."
        assert len(remote.asked) == 4


async def test_a_reader_that_leaves_a_stream_ends_the_request(double: OpenAiDouble) -> None:
    async with connected(double) as remote:
        stream = remote.slm.stream("Why?", max_tokens=20, priority=NOW)
        assert await anext(stream) == "The"
        await stream.aclose()
        assert remote.link.gate.in_flight == 0
        assert "".join(await pieces(remote)) == "The sea is wide."
