"""Finding a plan that the checks let through: by the SLM, by the SLM asked otherwise, by vectors, or none."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import structlog

from clag_server.memory.config import OrganizeConfig
from clag_server.memory.namespace import NamespaceState
from clag_server.memory.operations import OperationRun
from clag_server.memory.registry import Models
from clag_server.memory.reorganizing.checking import Verdict, check
from clag_server.memory.reorganizing.draft import PlanDraft
from clag_server.memory.reorganizing.layout import Layout, look
from clag_server.memory.reorganizing.naming import Named, name
from clag_server.memory.reorganizing.plan import Plan, ReorganizeFailed
from clag_server.memory.reorganizing.prompts import VARIANTS
from clag_server.memory.reorganizing.sampling import draw
from clag_server.memory.reorganizing.slm_planner import SlmPlanner
from clag_server.memory.reorganizing.vector_planner import plan_by_vectors
from clag_server.models.api import ModelError
from clag_server.types.competence import Skill

__all__ = ["Planning"]

_log = structlog.get_logger(__name__)


class Planning:
    """Makes plans.

    Args:
        models: The models.
        config: Thresholds.
    """

    def __init__(self, models: Models, config: OrganizeConfig) -> None:
        self._models = models
        self._config = config

    async def plan(self, run: OperationRun, state: NamespaceState, *, only: Collection[int], target: int) -> Plan:
        """Return a checked plan with names.

        Args:
            run: Is told how far it is.
            state: The namespace.
            only: Clusters to look at; all when empty.
            target: About how many clusters to aim for; 0 leaves it to the memories.

        Raises:
            ReorganizeFailed: No plan passed the checks.
        """
        trust = state.competence.trust
        asked = self._models.slm is not None and trust.asked(Skill.ROUTING) and trust.asked(Skill.EVOLUTION)
        variants: list[int | None] = [*(range(VARIANTS) if asked else ()), None]
        faults = []
        for attempt, variant in enumerate(variants, 1):
            await run.report("sampling", done=0, total=0)
            layout = await look(state.map, self._config, only)
            try:
                draft = await self._draft(run, state, layout, variant=variant, target=target)
            except ModelError as error:
                faults.append("the language model gave no plan")
                _log.warning("no plan by the language model", cause=type(error).__name__, attempt=attempt)
                continue
            named = await name(state, layout, draft.plan(attempts=attempt))
            await run.report("checking", done=0, total=1)
            verdict = await self._verdict(state, layout, named, target=target)
            if not verdict.fault and not _useless(named.plan):
                return named.plan
            faults.append(verdict.fault or "none of its steps could be")
            _log.info("plan rolled back", namespace=state.namespace.name, attempt=attempt, reason=faults[-1])
        raise ReorganizeFailed(f"no plan passed the checks ({len(faults)} made): {'; '.join(faults)}")

    async def _draft(
        self, run: OperationRun, state: NamespaceState, layout: Layout, *, variant: int | None, target: int
    ) -> PlanDraft:
        slm = self._models.slm
        if variant is None or slm is None:
            await run.report("planning", done=0, total=1)
            return await asyncio.to_thread(plan_by_vectors, layout, self._config, target=target)
        sample = await draw(state, layout, most=self._config.reorganize_sample, seed=variant)

        async def told(done: int, total: int) -> None:
            await run.report("planning", done=done, total=total)

        planner = SlmPlanner(slm, self._models.token_counter, self._config)
        draft = await planner.plan(state, layout, sample, variant=variant, target=target, told=told)
        if target and draft.clusters != target:
            draft.missed = f"the language model's plan leads to {draft.clusters} clusters, not {target}"
        return draft

    async def _verdict(self, state: NamespaceState, layout: Layout, named: Named, *, target: int) -> Verdict:
        weight = state.competence.trust.weight(Skill.ROUTING)
        return await check(state, layout, named, self._config, target=target, slm=self._models.slm, weight=weight)


def _useless(plan: Plan) -> bool:
    """Whether all that was proposed could not be: an empty plan is an answer, one of impossible steps is none."""
    return not plan.steps and plan.dropped > 0
