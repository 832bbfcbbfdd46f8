"""Whether a plan may be applied: nothing lost, bounds kept, clusters not looser, and a sample of it agreed to.

A plan that fails here is rolled back: nothing of it was applied yet.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clag_server.memory import prompts
from clag_server.memory.config import OrganizeConfig
from clag_server.memory.namespace import NamespaceState
from clag_server.memory.reorganizing.layout import Layout, Numbers, by_home, centroids, fit, unit_rows
from clag_server.memory.reorganizing.naming import Named, homes_after
from clag_server.memory.reorganizing.plan import StepKind
from clag_server.memory.vote_forms import score_options
from clag_server.memory.weighing import combine
from clag_server.models.api import ChoiceOption, ModelError, Priority, SlmEngine

__all__ = ["Verdict", "check"]

_ROWS = 2_000
"""Episodes on which clusters are compared before and after, at most."""

_ASKED = 24
"""Assignments that are looked at one by one, at most."""

_TEXT = 1_000
_EXAMPLES = 2
_DEADLINE_S = 120.0
_ONE_BY_ONE = (StepKind.REASSIGN, StepKind.NEW, StepKind.SPLIT)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the checks say: `fault` is why the plan must not be applied, "" when it may be."""

    fault: str
    checked: int = 0
    against: int = 0


@dataclass(frozen=True, slots=True)
class _Case:
    """An assignment to look at: the row of its episode, its clusters, and its cosine with each.

    The old cluster is what is left of it, the new one is the others in it: of a cluster that mixed two things,
    either part is like the whole.
    """

    row: int
    old: int
    new: int
    cosines: tuple[float, float]


async def check(
    state: NamespaceState,
    layout: Layout,
    named: Named,
    config: OrganizeConfig,
    *,
    target: int,
    slm: SlmEngine | None,
    weight: float,
) -> Verdict:
    """Check a plan; `weight` is what the SLM's word weighs beside the cosine, 0 or no SLM: the cosine alone."""
    homes = homes_after(layout, named.plan)
    fault = (
        _broken(layout, homes, config)
        or _off_target(named, target)
        or await asyncio.to_thread(_looser, layout, homes, config, target=target)
    )
    if fault:
        return Verdict(fault)
    cases = await asyncio.to_thread(_cases, layout, named, homes, split=not target)
    if slm is None or weight <= 0:
        against = sum(old > new for old, new in (case.cosines for case in cases))
    else:
        asked = [_speaks_against(state, layout, named, case, homes, slm, weight) for case in cases]
        against = sum(await asyncio.gather(*asked))
    if cases and against > config.reorganize_contradictions * len(cases):
        return Verdict(f"{against} of {len(cases)} checked assignments contradict it", len(cases), against)
    return Verdict("", len(cases), against)


def _broken(layout: Layout, homes: Numbers, config: OrganizeConfig) -> str:
    """Say what a plan does that none may: touch what is not its own, or make a cluster too large."""
    changed = homes != layout.homes
    touched = {int(n) for n in np.unique(np.concatenate([layout.homes[changed], homes[changed]]))}
    foreign = {number for number in touched if number > 0} - layout.movable
    if foreign:
        return f"it touches cluster c{min(foreign)}, which is not to be touched"
    before = {number: int(layout.sizes[rows].sum()) for number, rows in by_home(layout.homes).items()}
    for number, rows in by_home(homes).items():
        size = int(layout.sizes[rows].sum())
        if size > max(config.cluster_max, before.get(number, 0)):
            return f"a cluster would hold {size} memories, more than {config.cluster_max}"
    return ""


def _off_target(named: Named, target: int) -> str:
    plan = named.plan
    if target and abs(plan.clusters_after - target) > abs(plan.clusters_before - target):
        return f"{plan.clusters_after} clusters are farther from {target} than the {plan.clusters_before} before"
    return ""


def _looser(layout: Layout, homes: Numbers, config: OrganizeConfig, *, target: int) -> str:
    """Say when episodes would be less at home than before, on the clusters that the plan touches.

    A number of clusters that was asked for may cost cohesion: fewer are always looser.
    """
    changed = homes != layout.homes
    if not changed.any() or target:
        return ""
    touched = np.unique(np.concatenate([layout.homes[changed], homes[changed]]))
    rows = np.flatnonzero(np.isin(layout.homes, touched) | np.isin(homes, touched))
    rows = _evenly(rows, _ROWS)
    weights = layout.sizes[rows]
    before = float(np.average(fit(layout, layout.homes, rows).margins, weights=weights))
    after = float(np.average(fit(layout, homes, rows).margins, weights=weights))
    if after < before - config.reorganize_tolerance:
        return f"memories would be less at home in their clusters: margin {after:.2f} after {before:.2f}"
    return ""


def _cases(layout: Layout, named: Named, homes: Numbers, *, split: bool) -> list[_Case]:
    """Choose assignments to look at, evenly; those that leave or enter an empty cluster have nothing to compare.

    Splits that a number of clusters asks for (`split` is False) are not looked at: they part what is alike.
    """
    singled = np.zeros(len(homes), dtype=np.bool_)
    for step in named.plan.steps:
        if step.kind in _ONE_BY_ONE and (split or step.kind is not StepKind.SPLIT):
            singled[layout.rows_of(step.episodes)] = True
    rows = _evenly(np.flatnonzero(singled & (homes != layout.homes)), _ASKED)
    numbers, sums, _ = centroids(layout.vectors, homes)
    new = fit(layout, homes, rows).own
    cases = []
    for row, beside in zip(rows, new, strict=True):
        at = int(np.searchsorted(numbers, layout.homes[row]))
        stays = at < len(numbers) and numbers[at] == layout.homes[row]
        if stays and not np.isnan(beside):
            old = float(layout.vectors[row] @ unit_rows(sums[at][None, :])[0])
            cases.append(_Case(int(row), int(layout.homes[row]), int(homes[row]), (old, float(beside))))
    return cases


async def _speaks_against(
    state: NamespaceState,
    layout: Layout,
    named: Named,
    case: _Case,
    homes: Numbers,
    slm: SlmEngine,
    weight: float,
) -> bool:
    """Ask whether a memory follows more likely from what is left of its old cluster, and weigh that in."""
    members = await state.catalog.episode_members(state.ns, [int(layout.episodes[case.row])])
    memories = await state.catalog.memories(state.ns, [int(key) for key in members.keys])
    text = prompts.one_line("\n".join(memory.text for memory in memories), _TEXT)
    if not text:
        return False
    mine = {int(key) for key in members.keys}
    options = [
        await _option(state, layout, named, number, homes, mine, when)
        for number, when in ((case.old, "before"), (case.new, "after"))
    ]
    try:
        scores = await score_options(
            state.competence.form, slm, text, options, priority=Priority.BULK, deadline_s=_DEADLINE_S
        )
    except ModelError:
        return case.cosines[0] > case.cosines[1]
    old, new = combine(case.cosines, scores, weight)
    return old > new


async def _option(
    state: NamespaceState, layout: Layout, named: Named, number: int, homes: Numbers, mine: set[int], when: str
) -> ChoiceOption:
    """Return a cluster as it would be as an option, with examples that are not the memory in question."""
    planned = named.profiles.get(number)
    keys = [key for key in (planned.representatives if planned is not None else ()) if key not in mine]
    if len(keys) < _EXAMPLES:
        rows = np.flatnonzero(homes == number)[: 2 * _EXAMPLES]
        members = await state.catalog.episode_members(state.ns, [int(e) for e in layout.episodes[rows]])
        keys += [int(key) for key in members.keys if int(key) not in mine and int(key) not in keys]
    examples = [memory.text for memory in await state.catalog.memories(state.ns, keys[:_EXAMPLES])]
    profile = planned or layout.clusters.get(number)
    title = profile.title if profile is not None else ""
    head = prompts.cluster_head(title or "notes", "", profile.tags if profile is not None else (), examples)
    return ChoiceOption(key=f"{state.ns}/reorganize/{when}/{number}", head=head)


def _evenly(rows: NDArray[np.int64] | NDArray[np.intp], most: int) -> NDArray[np.int64]:
    """Return at most so many of the rows, evenly spread."""
    if len(rows) <= most:
        return rows.astype(np.int64)
    return rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)].astype(np.int64)
