"""The Python client keeps the behaviour that all clients are held to."""

from __future__ import annotations

import pytest

from tests.conformance.languages import LANGUAGES
from tests.conformance.matrix import failed, table
from tests.conformance.scenario import load
from tests.conformance.suite import Status, run_suite


@pytest.mark.slow
@pytest.mark.timeout(600)  # a minute on two idle cores
async def test_the_python_client_passes_every_scenario_that_needs_no_server_of_its_own() -> None:
    quick = [scenario for scenario in load() if not scenario.slow]
    python = [language for language in LANGUAGES if language.name == "python"]
    results = await run_suite(quick, python, jobs=2)
    assert not failed(results, present_only=False), table(results)
    assert {result.status for result in results} == {Status.OK}
