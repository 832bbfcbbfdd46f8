"""Profiles for what a plan makes: a cluster that is founded or takes others in has its name with the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from clag_server.memory.centroids import unit
from clag_server.memory.cluster_map import new_cluster
from clag_server.memory.namespace import NamespaceState
from clag_server.memory.profiles import Sample, profile
from clag_server.memory.reorganizing.layout import Layout, Numbers, by_home
from clag_server.memory.reorganizing.plan import SAMPLES, Plan, PlanStep, StepKind
from clag_server.types.cluster import Cluster, ClusterField
from clag_server.types.memory import AnnotationSource, DecidedBy

__all__ = ["Named", "homes_after", "name"]

_NAMED = 64
"""Clusters that get a profile before the plan is applied; those of further ones are written soon after."""

_WORDS = 120
"""Memories whose words make a profile."""

_REPRESENTATIVES = 3


@dataclass(frozen=True, slots=True)
class Named:
    """A plan with titles and samples, and the profiles behind the titles, by (provisional) number."""

    plan: Plan
    profiles: Mapping[int, Cluster]


def homes_after(layout: Layout, plan: Plan) -> Numbers:
    """Return the cluster of each of the layout's episodes after the plan (e,)."""
    homes = layout.homes.copy()
    for step in plan.steps:
        if step.kind is not StepKind.RENAME:
            homes[layout.rows_of(step.episodes)] = step.target
    return homes


async def name(state: NamespaceState, layout: Layout, plan: Plan) -> Named:
    """Give the steps titles and sample ids; what is left of a split cluster is renamed where that fits it."""
    naming = _Naming(state, layout, plan)
    steps: list[PlanStep] = []
    for step in plan.steps:
        # What stays is named first: the part that leaves may take the title along.
        renamed = await naming.remainder(step) if step.kind is StepKind.SPLIT else None
        steps.append(await naming.target(await _with_samples(state, step)))
        if renamed is not None:
            steps.append(renamed)
    return Named(replace(plan, steps=tuple(steps)), naming.profiles)


class _Naming:
    """Profiles of clusters as they would be, with titles that differ."""

    def __init__(self, state: NamespaceState, layout: Layout, plan: Plan) -> None:
        self._state = state
        self._layout = layout
        self._groups = by_home(homes_after(layout, plan))
        self._taken = Counter(cluster.title for cluster in state.map.clusters.values())
        renames = [step for step in plan.steps if step.kind is StepKind.RENAME]
        self._renamed = {step.target for step in renames}
        self._taken.update(step.new_title for step in renames)
        self._taken.subtract(step.old_title for step in renames)
        self.profiles: dict[int, Cluster] = {}

    async def target(self, step: PlanStep) -> PlanStep:
        """Give a step that makes a cluster, or adds to one, the title that it leads to."""
        if step.kind not in (StepKind.MERGE, StepKind.SPLIT, StepKind.NEW):
            return step
        made = self.profiles.get(step.target) or await self._profile(step.target, step.new_title, step.title_by)
        if made is None:
            return step
        by = DecidedBy.SLM if made.profiled_by is AnnotationSource.SLM else DecidedBy.VECTOR
        return replace(step, new_title=made.title, title_by=by)

    async def remainder(self, split: PlanStep) -> PlanStep | None:
        """Name what is left of a split cluster; None where its title stays."""
        (source,) = split.sources
        known = self._layout.clusters.get(source)
        if known is None or source in self._renamed or ClusterField.TITLE in known.client_fields:
            return None
        self._renamed.add(source)
        made = await self._profile(source, "", DecidedBy.VECTOR)
        if made is None or made.title == known.title:
            return None
        return PlanStep(
            kind=StepKind.RENAME,
            sources=(source,),
            target=source,
            episodes=(),
            memories=made.profile_count,
            reason="it is what is left after the split",
            old_title=known.title,
            new_title=made.title,
        )

    async def _profile(self, number: int, title: str, by: DecidedBy) -> Cluster | None:
        """Write the profile of a cluster as it would be; the title stands where there is one, if it is free."""
        rows = self._groups.get(number)
        if rows is None or len(self.profiles) >= _NAMED:
            return None
        state = self._state
        cluster = state.map.clusters.get(number) or new_cluster(number, "", state.dim, state.now_ns())
        sampled = await _sample(state, [int(e) for e in self._layout.episodes[rows]])
        self._taken[cluster.title] -= 1
        others = {taken for taken, times in self._taken.items() if times > 0}
        made = await profile(state.catalog, state.ns, cluster, sampled, others, now_ns=state.now_ns())
        if title and title not in others and ClusterField.TITLE not in cluster.client_fields:
            source = AnnotationSource.SLM if by is DecidedBy.SLM else made.profiled_by
            made = replace(made, title=title, profiled_by=source)
        self._taken[made.title] += 1
        self.profiles[number] = replace(made, profile_count=int(self._layout.sizes[rows].sum()))
        return self.profiles[number]


async def _sample(state: NamespaceState, episodes: Sequence[int]) -> Sample:
    """Read members evenly over time, and those nearest the centroid."""
    members = await state.catalog.episode_members(state.ns, episodes)
    centroid = unit(members.vectors.sum(axis=0)) if len(members.keys) else np.zeros(state.dim, dtype=np.float32)
    nearest = np.lexsort((members.keys, -(members.vectors @ centroid)))[:_REPRESENTATIVES]
    spread = members.keys[:: max(1, -(-len(members.keys) // _WORDS))]
    return Sample(
        await state.catalog.memories(state.ns, [int(key) for key in spread]),
        await state.catalog.memories(state.ns, [int(key) for key in members.keys[nearest]]),
    )


async def _with_samples(state: NamespaceState, step: PlanStep) -> PlanStep:
    """Name some of a step's memories: the first of its episodes, then the next."""
    if not step.episodes:
        return step
    members = await state.catalog.episode_members(state.ns, step.episodes[:SAMPLES])
    order = np.argsort(members.positions, kind="stable")
    keys = [int(key) for key in members.keys[order]][:SAMPLES]
    memories = await state.catalog.memories(state.ns, keys)
    return replace(step, samples=tuple(memory.memory_id for memory in memories))
