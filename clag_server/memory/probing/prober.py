"""Runs the competence probe: by itself once for each model, and whenever a client asks.

A probe is an operation of the server. While a model loads or is away it waits, and it goes on where it was; after a
restart it begins anew. Nobody waits for it: until it has ended, the SLM is trusted with nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from clag_server.memory.competence import Competence
from clag_server.memory.operations import OperationRun, Operations, new_operation
from clag_server.memory.probing.examination import Examination, version
from clag_server.memory.probing.reports import ReportFolder, report_to
from clag_server.models.api import Embedder, ModelUnavailableError, SlmEngine
from clag_server.types.competence import ProbeReport, SkillResult, TrustPolicy
from clag_server.types.errors import ClagError, StorageFailed
from clag_server.types.operation import JsonValue, Operation, OperationKind

__all__ = ["ProbeConfig", "Prober"]

_log = structlog.get_logger(__name__)

_LOOK_EVERY_S = 0.25
"""How soon a client that cancels is heard."""

_NO_MODEL = "no language model is configured (models.slm), so there is nothing to probe"


class NoModel(ClagError):
    """A probe goes on after a restart of a server that has no SLM any more."""


class ProbedModels(Protocol):
    """The models that a probe needs."""

    @property
    def embedder(self) -> Embedder:
        """Gives the vector order to compare with."""

    @property
    def slm(self) -> SlmEngine | None:
        """The model that is probed."""


@dataclass(frozen=True, slots=True)
class ProbeConfig:
    """How models are probed.

    Attributes:
        identity: What the SLM is: its name, and where or which exactly it is. None: there is none.
        automatic: Whether a model without an outcome is probed by itself.
        link_cosine: Least cosine of a link that is made without the SLM.
    """

    identity: str | None = None
    automatic: bool = True
    link_cosine: float = 0.55


class Prober:
    """Begins and runs PROBE operations.

    Args:
        models: The models.
        operations: Runs them.
        competence: Learns the outcome.
        folder: Where outcomes are kept.
        config: How.
        now_ns: The wall clock.
    """

    def __init__(
        self,
        models: ProbedModels,
        *,
        operations: Operations,
        competence: Competence,
        folder: Path,
        config: ProbeConfig,
        now_ns: Callable[[], int],
    ) -> None:
        self._models = models
        self._operations = operations
        self._competence = competence
        self._reports = ReportFolder(folder)
        self._config = config
        self._now_ns = now_ns
        self._asking = asyncio.Lock()
        self._examinations: dict[str, Examination] = {}
        operations.register(OperationKind.PROBE, self._run)

    async def start(self) -> None:
        """Learn the outcome that is kept for this model; without one, begin a probe. After operations started."""
        if self._config.identity is None:
            return
        kept = await asyncio.to_thread(self._reports.load, self._identity(), version())
        if kept is not None:
            self._competence.learned(kept)
        elif self._config.automatic and self._competence.policy is TrustPolicy.PROBE:
            try:
                await self.begin()
            except StorageFailed as error:  # a full disk keeps nobody from reading
                _log.warning("language model is not probed", reason=str(error))

    async def begin(self) -> Operation:
        """Begin a probe; while one runs, return that one.

        Raises:
            ModelUnavailableError: There is no SLM.
        """
        if self._config.identity is None:
            raise ModelUnavailableError(_NO_MODEL)
        async with self._asking:
            running = await self._operations.unfinished(None, [OperationKind.PROBE])
            if running is not None:
                return await self._operations.get(running.operation_id)
            return await self._operations.submit(
                new_operation(OperationKind.PROBE, ns=None, namespace="", request={}, now_ns=self._now_ns())
            )

    async def _run(self, run: OperationRun) -> Mapping[str, JsonValue]:
        """Examine the model; run again after it was away, only what is missing is asked."""
        slm = self._models.slm
        if self._config.identity is None or slm is None:
            raise NoModel(_NO_MODEL)
        operation_id = run.operation.operation_id
        examination = self._examinations.get(operation_id)
        if examination is None:
            # One probe runs at a time; what an earlier one left behind was cancelled.
            self._examinations.clear()
            examination = Examination(slm, self._models.embedder, link_cosine=self._config.link_cosine)
            self._examinations[operation_id] = examination

        async def told(phase: str, done: int, total: int) -> None:
            await run.report(phase, done=done, total=total)

        skills = await _unless_cancelled(examination.run(told), run)
        report = ProbeReport(
            slm.name,
            version(),
            skills,
            examination.decisions_per_second,
            self._now_ns(),
            examination.forms,
            examination.form,
        )
        await self._keep(report)
        del self._examinations[operation_id]
        self._competence.learned(report)
        _log.info(
            "language model probed",
            model=report.model,
            decisions_per_second=round(report.decisions_per_second, 2),
            votes_by=report.form.name.lower(),
            **{f"{one.skill.name.lower()}_weight": one.weight for one in skills},
            **{f"{one.skill.name.lower()}_accuracy": round(one.accuracy, 3) for one in skills},
        )
        return report_to(report)

    async def _keep(self, report: ProbeReport) -> None:
        try:
            await asyncio.to_thread(self._reports.keep, self._identity(), report)
        except OSError as error:
            raise StorageFailed(f"the outcome of the probe cannot be kept ({error.strerror})") from error

    def _identity(self) -> str:
        """Return what an outcome belongs to: the SLM, and the vectors that it was compared with."""
        told = f"{self._config.identity}\n{self._models.embedder.fingerprint}\n{self._config.link_cosine}"
        return f"{self._config.identity} {hashlib.sha256(told.encode()).hexdigest()[:16]}"


async def _unless_cancelled(
    examining: Coroutine[None, None, tuple[SkillResult, ...]], run: OperationRun
) -> tuple[SkillResult, ...]:
    """Examine until it is done, or a client asks to stop: also while a model loads or hangs."""
    task = asyncio.create_task(examining)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=_LOOK_EVERY_S)
            run.stop_if_asked()
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
