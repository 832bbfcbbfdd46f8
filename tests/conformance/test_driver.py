"""The driver itself: it must notice what a runner does wrong, and what the suite leaves out."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml  # type: ignore[import-untyped]
from clag.v1 import admin_service_pb2, cluster_service_pb2, memory_service_pb2, types_pb2

from tests.conformance.failures import CODES
from tests.conformance.languages import Language
from tests.conformance.matching import mismatch
from tests.conformance.matrix import failed, table
from tests.conformance.runner_process import RunnerProcess
from tests.conformance.samples import KINDS, samples
from tests.conformance.scenario import Scenario, ScenarioError, ServerKind, load
from tests.conformance.suite import Result, Status, run_suite
from tests.conformance.templates import rendered

HELLO = 'print(\'{"hello":{"language":"l","client":"1","features":[]}}\', flush=True)\n'


async def results_of(code: str, steps: Sequence[dict[str, Any]], **more: Any) -> Result:
    """What becomes of one scenario without a server, against a runner that is this Python code."""
    scenario = Scenario("file/name", "about", steps, server=ServerKind(kind="none"), connect=False, **more)
    language = Language("l", command=(sys.executable, "-c", code))
    (result,) = await run_suite([scenario], [language], jobs=1)
    return result


ROUNDTRIP = [{"roundtrip": {"type": "Revision", "message": {"token": "t"}}}]


def answering(answer: str) -> str:
    return HELLO + f"import sys\nfor line in sys.stdin: print({answer!r}, flush=True)\n"


async def test_an_honest_answer_passes() -> None:
    assert (await results_of(answering('{"id":1,"ok":{"data":"CgF0"}}'), ROUNDTRIP)).status is Status.OK


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (answering('{"id":1,"ok":{"data":"CgF1"}}'), "field token"),
        (answering('{"id":1,"ok":{"data":""}}'), "Revision"),
        (answering('{"id":1,"error":{"code":"UNKNOWN"}}'), "UNKNOWN"),
        (answering('{"id":9,"ok":{}}'), "an answer to no command"),
        (answering("no json"), "not JSON"),
        (HELLO + "raise SystemExit(3)", "ended with 3"),
        ("import sys; print('what went wrong', file=sys.stderr); sys.exit(1)", "what went wrong"),
        ("print('{}')", "not a hello"),
    ],
)
async def test_a_wrong_answer_or_a_broken_protocol_fails_with_the_reason(code: str, said: str) -> None:
    result = await results_of(code, ROUNDTRIP)
    assert result.status is Status.FAIL
    assert said in result.reason


async def test_a_feature_that_the_runner_lacks_skips_with_the_reason() -> None:
    result = await results_of(answering("{}"), ROUNDTRIP, needs=frozenset({"tls"}))
    assert (result.status, result.reason) == (Status.SKIP, "without tls")


@pytest.mark.parametrize("language", [Language("none"), Language("l", command=("sh", "-c", "exit 127"))])
async def test_a_missing_runner_fails_the_run_unless_only_present_ones_count(language: Language) -> None:
    results = await run_suite(load(["roundtrip/*"]), [language], jobs=2)
    assert {result.status for result in results} == {Status.MISSING}
    assert failed(results, present_only=False)
    assert not failed(results, present_only=True)
    assert "missing" in table(results)


def test_every_rpc_of_the_contract_has_a_scenario_of_its_own() -> None:
    names = {scenario.name for scenario in load()}
    files = ((memory_service_pb2, "memory"), (cluster_service_pb2, "cluster"), (admin_service_pb2, "admin"))
    wanted = {
        f"rpcs_{short}/{method.name}"
        for file, short in files
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert len(wanted) >= 38
    assert wanted <= names


def test_every_reason_of_the_contract_is_told_by_the_double() -> None:
    reasons = {name.removeprefix("ERROR_REASON_") for name in types_pb2.ErrorReason.keys()}  # noqa: SIM118
    assert set(CODES) == reasons - {"UNSPECIFIED"}


def test_samples_cover_every_type_and_every_arm() -> None:
    files = (types_pb2, memory_service_pb2, cluster_service_pb2, admin_service_pb2)
    types = {name for file in files for name in file.DESCRIPTOR.message_types_by_name}
    for kind in set(KINDS) - {"arms"}:
        assert {message.DESCRIPTOR.name for message in samples(kind)} == types, kind
    arms = {
        field.full_name
        for message in samples("arms")
        for field, _ in message.ListFields()
        if field.containing_oneof is not None
    }
    wanted = {
        field.full_name
        for file in files
        for message in file.DESCRIPTOR.message_types_by_name.values()
        for choice in message.oneofs
        for field in choice.fields
    }
    assert wanted <= arms


def test_random_samples_are_the_same_each_time() -> None:
    first, second = ([one.SerializeToString(deterministic=True) for one in samples("random", seed=3)] for _ in "ab")
    assert first == second != [one.SerializeToString(deterministic=True) for one in samples("random", seed=4)]


@pytest.mark.parametrize(
    ("actual", "expected", "fits"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"a": "18446744073709551615"}, {"a": 18446744073709551615}, True),
        ({"a": "x"}, {"a": 1}, False),
        ([1, 2], [1], False),
        ([1, 2], {"$len": {"$ge": 2}, "$has": 2}, True),
        ([1, 2], {"$len": 2, "$has": 3}, False),
        ({}, {"a": {"$absent": True}}, True),
        ({"a": 0}, {"a": {"$absent": True}}, False),
        ({}, {"a": {"$any": True}}, False),
        ({}, {"a": {"$not": 1}}, False),
        ("abc", {"$regex": "^b"}, False),
        ([{"a": 1}, {"a": 1}], {"$all": {"a": 1}}, True),
        (True, 1, False),
    ],
)
def test_expectations_match_what_they_name_and_nothing_else(actual: Any, expected: Any, fits: bool) -> None:
    assert (mismatch(actual, expected) is None) is fits


def test_templates_keep_types_and_refuse_unknown_names() -> None:
    variables = {"n": 3, "saved": {"list": ["x", "y"]}}
    assert rendered("${n}", variables) == 3
    assert rendered("m-${saved.list.1}", variables) == "m-y"
    assert rendered({"$numbered": [2, {"text": "note ${n}"}]}, {}) == [{"text": "note 1"}, {"text": "note 2"}]
    with pytest.raises(KeyError):
        rendered("${other}", variables)


def test_a_file_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    content = [{"name": "n", "about": "a", "steps": [], "expects": 1}]
    (tmp_path / "f.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    with pytest.raises(ScenarioError, match="expects"):
        load(folder=tmp_path)


async def test_a_runner_that_is_gone_already_is_killed_without_an_error() -> None:
    gone = await asyncio.create_subprocess_exec("true", start_new_session=True)
    await gone.wait()
    runner = RunnerProcess(Language("l", command=("true",)))
    process = mock.Mock(pid=gone.pid, returncode=None, stdin=mock.Mock(), wait=mock.AsyncMock(return_value=0))
    runner._process = process
    await runner.kill()
    process.wait.assert_awaited_once()
    await runner.close()
