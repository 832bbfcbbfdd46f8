"""Runs scenarios against languages and gathers what came out."""

from __future__ import annotations

import asyncio
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tests.conformance.languages import Language
from tests.conformance.runner_process import RunnerFailed, RunnerMissing, RunnerProcess
from tests.conformance.scenario import Scenario
from tests.conformance.servers import Servers
from tests.conformance.steps import run_step
from tests.conformance.world import Failed, World

__all__ = ["Result", "Status", "run_suite"]


class Status(StrEnum):
    """How a scenario went in a language."""

    OK = "ok"
    FAIL = "FAIL"
    SKIP = "skip"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Result:
    """A cell of the matrix."""

    scenario: str
    language: str
    status: Status
    reason: str
    seconds: float


Heard = Callable[[Result], None]


class _Slot:
    """A language's runner, kept from one scenario to the next."""

    def __init__(self, language: Language) -> None:
        self._language = language
        self._runner: RunnerProcess | None = None

    async def runner(self) -> RunnerProcess:
        if self._runner is None or not self._runner.alive:
            return await self.restart()
        return self._runner

    async def restart(self) -> RunnerProcess:
        await self.kill()
        self._runner = await RunnerProcess(self._language).start()
        return self._runner

    async def kill(self) -> None:
        if self._runner is not None:
            await self._runner.kill()
            await self._runner.close()
            self._runner = None

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.close()


async def run_suite(
    scenarios: Sequence[Scenario],
    languages: Sequence[Language],
    *,
    jobs: int,
    heard: Heard = lambda _result: None,
    folder: Path | None = None,
) -> list[Result]:
    """Run every scenario against every language.

    Args:
        scenarios: the rows.
        languages: the columns.
        jobs: how many scenarios run at once, each with a runner of its own.
        heard: hears each result when it is known.
        folder: where servers have their data and logs, to be looked at later; None for one that is removed.

    Returns:
        The results, by language and in the order of the scenarios.
    """
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="clag-conformance-") as passing:
        servers = Servers(folder or Path(passing))
        try:
            for language in languages:
                results += await _column(language, scenarios, servers, jobs=jobs, heard=heard)
        finally:
            await servers.close()
    return results


async def _column(
    language: Language, scenarios: Sequence[Scenario], servers: Servers, *, jobs: int, heard: Heard
) -> list[Result]:
    waiting = list(enumerate(scenarios))
    found: dict[int, Result] = {}
    missing: list[str] = []

    async def work() -> None:
        slot = _Slot(language)
        try:
            while waiting:
                index, scenario = waiting.pop(0)
                if missing:
                    found[index] = Result(scenario.name, language.name, Status.MISSING, missing[0], 0.0)
                    continue
                found[index] = await _cell(slot, language, scenario, servers)
                if found[index].status is Status.MISSING:
                    missing.append(found[index].reason)
                heard(found[index])
        finally:
            await slot.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(jobs):
            group.create_task(work())
    return [found[index] for index in sorted(found)]


async def _cell(slot: _Slot, language: Language, scenario: Scenario, servers: Servers) -> Result:
    started = time.monotonic()
    status, reason = Status.OK, ""
    try:
        runner = await slot.runner()
        lacking = sorted(scenario.needs - runner.features)
        if lacking:
            return Result(scenario.name, language.name, Status.SKIP, f"without {', '.join(lacking)}", 0.0)
        await _play(scenario, runner, slot, servers)
    except RunnerMissing as absent:
        status, reason = Status.MISSING, str(absent)
    except (Failed, RunnerFailed) as failure:
        status, reason = Status.FAIL, str(failure)
    except TimeoutError:
        status, reason = Status.FAIL, f"not done within {scenario.timeout_s:g} s"
    except Exception as error:  # noqa: BLE001  # a fault of one scenario, or of the driver, is no end of the others
        status, reason = Status.FAIL, f"the driver failed: {''.join(traceback.format_exception(error)[-3:])}"
    if status is Status.FAIL:
        await slot.kill()  # whatever is left in it must not fail the next one
    return Result(scenario.name, language.name, status, reason, time.monotonic() - started)


async def _play(scenario: Scenario, runner: RunnerProcess, slot: _Slot, servers: Servers) -> None:
    async with World(scenario, runner, slot.restart, servers) as world, asyncio.timeout(scenario.timeout_s):
        for number, step in enumerate(scenario.steps, start=1):
            try:
                await run_step(world, step)
            except (Failed, RunnerFailed) as failure:
                action = next(iter(step))
                raise Failed(f"step {number} ({action} {str(step[action])[:60]}): {failure}") from None
