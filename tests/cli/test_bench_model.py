"""`clag bench-model`: what it measures of a model, what it recommends, and how it ends when there is none."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from pathlib import Path

import pytest

from clag_server.cli.bench_measure import OPTIONS, Latency, Measured, Plan, Rate, measure
from clag_server.cli.bench_model import advise
from clag_server.cli.errors import ExitCode
from clag_server.models.api import ModelUnavailableError, Priority
from clag_server.models.remote_chat import GrammarField
from clag_server.models.remote_scores import ScoreMethod
from tests.cli.command import COMMAND, Ended, clag, environment
from tests.support.openai_double import Abilities, OpenAiDouble, Request, status
from tests.support.remote_slm import connected

GOOD = '{"about": "a wet crate", "tags": ["gripper"]}'
SHORT = Plan(stage_s=0.2, callers=(1, 4))


def one_in_four_is_prose(request: Request) -> str:
    number = re.search(r"(\d+)\. ", request.prompt)
    return "I will not." if number and int(number[1]) % 4 == 0 else GOOD


async def run(*arguments: str | Path, home: Path) -> Ended:
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *map(str, arguments),
        env=environment(home),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return Ended(process.returncode or 0, out.decode(), err.decode())


async def test_everything_is_measured_of_a_model_that_can_do_everything() -> None:
    able = Abilities(scores=ScoreMethod.ECHO, grammar_field=GrammarField.EBNF)
    async with OpenAiDouble(able, one_in_four_is_prose).serving() as double, connected(double) as remote:
        stages: list[str] = []
        found = await measure(remote.slm, SHORT, stages.append)
    assert stages == [
        "choices",
        "generations, 1 at a time",
        "generations, 4 at a time",
        "interactive calls, idle",
        "interactive calls under load",
    ]
    assert found.choices
    assert found.choices.per_s > 0
    assert [rate.callers for rate in found.generations] == [1, 4]
    assert all(rate.per_s > 0 and rate.tokens_out_per_s > 0 for rate in found.generations)
    assert found.interactive == "choose"
    for latency in (found.idle, found.loaded):
        assert latency
        assert 0 < latency.p50_s <= latency.p99_s
    # One answer in four was prose; in a short run the share is near that.
    assert found.valid_rate == pytest.approx(0.75, abs=0.1)
    assert set(found.failures) == {"not_json"}


async def test_a_model_without_scores_is_measured_by_what_it_can_do() -> None:
    async with OpenAiDouble(answer=lambda _: GOOD).serving() as double, connected(double) as remote:
        found = await measure(remote.slm, SHORT, lambda _: None)
    assert found.choices is None
    assert "no vote" in found.choices_reason
    assert found.interactive == "generate"
    assert found.idle
    assert found.valid_rate == 1.0


async def test_prompts_and_choices_differ_from_call_to_call_and_interactive_calls_are_marked() -> None:
    async with OpenAiDouble(Abilities(scores=ScoreMethod.ECHO), lambda _: GOOD).serving() as double:
        async with connected(double) as remote:
            await measure(remote.slm, SHORT, lambda _: None)
        chats = [one.prompt for one in double.requests if one.path.endswith("chat/completions")]
        assert len(set(chats)) == len(chats)
        scored = [one.body["prompt"][-1] for one in double.requests if one.path.endswith("/completions")
                  and "prompt" in one.body]  # fmt: skip
        assert len(set(scored)) == len(scored)


async def test_a_model_that_never_answers_ends_its_stages_within_their_patience() -> None:
    async with OpenAiDouble(answer=lambda _: GOOD).serving() as double, connected(double) as remote:
        double.gate = asyncio.Event()
        found = await measure(remote.slm, Plan(stage_s=0.05, callers=(1, 4), patience_s=0.1), lambda _: None)
        assert (found.generations, found.idle, found.loaded, found.valid_rate) == ([], None, None, None)
        assert [one.value for one in advise(found, remote=True) if one.setting] == ["terms"]
        double.gate.set()


async def test_a_model_that_stops_answering_ends_the_measurement_with_the_reason() -> None:
    async with OpenAiDouble(answer=lambda _: GOOD).serving() as double, connected(double) as remote:
        remote.waits.hold()
        double.abilities = Abilities(models=())
        with pytest.raises(ModelUnavailableError, match="does not exist"):
            await measure(remote.slm, SHORT, lambda _: None)
        remote.waits.release()


async def test_the_measurement_leaves_no_call_behind() -> None:
    async with OpenAiDouble(Abilities(scores=ScoreMethod.ECHO)).serving() as double, connected(double) as remote:
        await measure(remote.slm, SHORT, lambda _: None)
        assert (remote.link.gate.in_flight, remote.link.gate.waiting) == (0, 0)
        assert (await remote.slm.choose("text", OPTIONS, priority=Priority.BULK)).scores


async def test_the_command_prints_a_table_for_people_and_a_document_for_programs(tmp_path: Path) -> None:
    able = Abilities(scores=ScoreMethod.PROMPT_LOGPROBS)
    async with OpenAiDouble(able, lambda _: GOOD).serving() as double:
        arguments = ("bench-model", "tiny", "--url", double.url, "--quick", "--seconds", "0.2")
        shown = await run(*arguments, home=tmp_path)
        assert shown.code == 0, shown.err
        for words in (
            "choices among five",
            "structured generations",
            "interactive choose",
            "100.0%",
            "Recommended",
        ):
            assert words in shown.out
        told = await run(*arguments, "--json", home=tmp_path)
        document = told.document()
        assert (document["model"], document["url"], document["valid_rate"]) == ("tiny", double.url, 1.0)
        assert document["choices"]["per_s"] > 0
        assert [one["callers"] for one in document["generations"]] == [1, 8]
        assert document["loaded"]["count"] > 0
        assert {one["setting"] for one in document["advice"]} >= {"organize.annotate", "models.slm_concurrency"}


async def test_a_server_that_refuses_the_model_or_the_key_ends_the_command_with_one_line(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sk-wrong")
    async with OpenAiDouble(Abilities(models=("other",))).serving() as double:
        done = await run("bench-model", "tiny", "--url", double.url, "--quick", home=tmp_path)
        assert done.code == ExitCode.UNREACHABLE
        assert "no model tiny there, but other" in done.err.splitlines()[-1]
        double.abilities.key = "sk-right"
        done = await run("bench-model", "tiny", "--url", double.url, "--api-key-file", key, home=tmp_path)
        assert done.code == ExitCode.UNREACHABLE
        assert "401" in done.err
        assert "sk-wrong" not in done.err + done.out


async def test_a_server_that_fails_while_it_is_measured_is_a_server_error(tmp_path: Path) -> None:
    async with OpenAiDouble(answer=lambda _: GOOD).serving() as double:

        def fail_after_probe(request: Request) -> str:
            double.faults.extend([status(400, "no more")] * 100)
            return GOOD

        double.answer = fail_after_probe
        done = await run("bench-model", "tiny", "--url", double.url, "--quick", "--seconds", "0.2", home=tmp_path)
        assert done.code == ExitCode.SERVER
        assert "stopped answering" in done.err.splitlines()[-1]


def test_a_model_that_is_not_in_the_cache_is_told_with_the_command_that_gets_it(tmp_path: Path) -> None:
    done = clag("bench-model", "smollm2-135m-instruct", "--quick", home=tmp_path)
    assert done.code == ExitCode.MODEL_MISSING
    assert "clag models pull" in done.error()


def test_an_address_that_cannot_be_used_is_a_usage_error(tmp_path: Path) -> None:
    for url in ("localhost:8000", "http://user:secret@host/v1"):
        done = clag("bench-model", "tiny", "--url", url, home=tmp_path)
        assert done.code == ExitCode.USAGE
        assert "address" in done.error()


LATENCY = Latency(100, 0.01, 0.02)


@pytest.mark.parametrize(
    ("per_s", "valid", "unusable", "value"),
    [(50.0, 99, 1, "slm"), (0.2, 100, 0, "terms"), (50.0, 60, 40, "terms"), (0.0, 0, 0, "terms")],
)
def test_annotation_by_the_model_is_recommended_when_it_is_usable_and_quick(
    per_s: float, valid: int, unusable: int, value: str
) -> None:
    rates = [Rate(8, per_s, 10.0)] if per_s else []
    found = Measured(Rate(8, 100.0, 0.0), "", rates, valid, Counter(cut=unusable), "choose", LATENCY, LATENCY)
    assert {one.setting: one.value for one in advise(found, remote=False)} == {"organize.annotate": value}


def test_the_fewest_requests_in_flight_that_are_as_fast_are_recommended() -> None:
    def recommended(*rates: float) -> str:
        measured = [Rate(callers, rate, 1.0) for callers, rate in zip((1, 8, 32), rates, strict=True)]
        found = Measured(generations=measured, valid=10, idle=LATENCY, loaded=LATENCY)
        return {one.setting: one.value for one in advise(found, remote=True)}["models.slm_concurrency"]

    assert recommended(1.0, 1.05, 1.0) == "1"
    assert recommended(1.0, 6.0, 6.2) == "8"
    assert recommended(1.0, 6.0, 20.0) == "32"


def test_slow_answers_under_load_are_pointed_out() -> None:
    found = Measured(valid=10, idle=LATENCY, loaded=Latency(10, 0.1, 0.2))
    assert any("10.0 times as long" in one.why for one in advise(found, remote=True))
    found.loaded = Latency(10, 0.02, 0.05)
    assert not any("times as long" in one.why for one in advise(found, remote=True))
