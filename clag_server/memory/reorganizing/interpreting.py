"""What the steps that a language model wrote mean for episodes; steps that cannot be are dropped and counted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clag_server.memory.reorganizing.draft import PlanDraft
from clag_server.memory.reorganizing.layout import Numbers, unit_rows
from clag_server.memory.reorganizing.plan import StepKind
from clag_server.memory.reorganizing.prompts import RawStep
from clag_server.memory.reorganizing.sampling import Sampled
from clag_server.memory.splitting import two_means
from clag_server.types.cluster import ClusterField

__all__ = ["Interpreter"]

_FOLLOWS = 0.05
"""How much nearer an episode must be to a new cluster than to its own to follow those that the model named."""


class Interpreter:
    """Turns steps over sampled memories into steps over episodes.

    A memory stands for its episode, which moves whole. Where a part of a cluster leaves, the episodes that were not
    shown go with the part that they are nearer to.

    Args:
        draft: Gets the steps.
    """

    def __init__(self, draft: PlanDraft) -> None:
        self._draft = draft
        self._layout = draft.layout
        self._moved: set[int] = set()
        self._split: set[int] = set()
        self._titles = {cluster.title for cluster in draft.layout.clusters.values()}

    def take(self, steps: Sequence[RawStep], clusters: Sequence[int], memories: Sequence[Sampled]) -> None:
        """Add what can be of the steps for a prompt that showed these clusters and memories."""
        doing = {
            StepKind.MERGE: self._merge,
            StepKind.SPLIT: self._part,
            StepKind.NEW: self._new,
            StepKind.REASSIGN: self._reassign,
            StepKind.RENAME: self._rename,
        }
        for step in steps:
            known = all(number in clusters and self._draft.may_touch(number) for number in step.clusters)
            named = all(1 <= number <= len(memories) for number in step.memories)
            rows = self._rows([memories[n - 1] for n in step.memories]) if named else np.zeros(0, dtype=np.int64)
            if not (known and named and doing[step.kind](step, rows)):
                self._draft.dropped += 1

    def _rows(self, memories: Sequence[Sampled]) -> Numbers:
        """Return the rows of the memories' episodes that were not moved yet and may be."""
        rows = {one.row for one in memories} - self._moved
        return np.array(
            sorted(row for row in rows if self._draft.may_touch(int(self._draft.homes[row]))), dtype=np.int64
        )

    def _merge(self, step: RawStep, _rows: Numbers) -> bool:
        if len(step.clusters) < 2 or self._split & set(step.clusters):
            return False
        into, *others = step.clusters
        title = self._fresh(step.title) if not self._written_by_client(into) else ""
        self._draft.merge(into, others, self._why(step, "they are about the same"), title=title)
        return True

    def _part(self, step: RawStep, rows: Numbers) -> bool:
        if len(step.clusters) != 1 or step.clusters[0] in self._split:
            return False
        (source,) = step.clusters
        all_rows = np.flatnonzero(self._draft.homes == source)
        seeds = rows[self._draft.homes[rows] == source]
        if step.memories and not len(seeds):
            return False
        if len(seeds):
            leaving = self._followers(seeds, all_rows, margin=0.0)
        else:
            smaller = two_means(self._layout.vectors[all_rows])
            leaving = all_rows[smaller] if smaller is not None else np.zeros(0, dtype=np.int64)
        if not 0 < len(leaving) < len(all_rows):
            return False
        self._leave(StepKind.SPLIT, [source], leaving, step, "it mixes two things")
        self._split.add(source)
        return True

    def _new(self, step: RawStep, rows: Numbers) -> bool:
        if not len(rows):
            return False
        sources = sorted({int(home) for home in self._draft.homes[rows]})
        around = np.flatnonzero(np.isin(self._draft.homes, np.array(sources, dtype=np.int64)))
        leaving = self._followers(rows, around, margin=_FOLLOWS)
        self._leave(StepKind.NEW, sources, leaving, step, "they belong together and to no other cluster")
        return True

    def _reassign(self, step: RawStep, rows: Numbers) -> bool:
        if len(step.clusters) != 1:
            return False
        (into,) = step.clusters
        rows = rows[self._draft.homes[rows] != into]
        for source in sorted({int(home) for home in self._draft.homes[rows]}):
            some = rows[self._draft.homes[rows] == source]
            self._draft.reassign(source, into, some, self._why(step, "they belong there"))
        self._moved.update(int(row) for row in rows)
        return bool(len(rows))

    def _rename(self, step: RawStep, _rows: Numbers) -> bool:
        title = self._fresh(step.title)
        if len(step.clusters) != 1 or not title or self._written_by_client(step.clusters[0]):
            return False
        self._draft.rename(step.clusters[0], title, self._why(step, "its title misleads"))
        return True

    def _leave(self, kind: StepKind, sources: Sequence[int], rows: Numbers, step: RawStep, why: str) -> None:
        self._draft.found(kind, sources, rows, self._why(step, why), title=self._fresh(step.title))
        self._moved.update(int(row) for row in rows)

    def _followers(self, seeds: Numbers, around: Numbers, *, margin: float) -> Numbers:
        """Return the seeds and those around them that are nearer to them than to the others of their cluster."""
        vectors = self._layout.vectors
        others = np.setdiff1d(around, seeds)
        others = others[[int(row) not in self._moved for row in others]] if len(others) else others
        if not len(others):
            return seeds
        head = unit_rows(vectors[seeds].sum(axis=0)[None, :])[0]
        sums = vectors[others].sum(axis=0)
        rest = unit_rows(sums - vectors[others])
        own = np.einsum("ij,ij->i", rest, vectors[others]) if len(others) > 1 else np.full(1, np.inf)
        return np.sort(np.concatenate([seeds, others[vectors[others] @ head > own + margin]]))

    def _fresh(self, title: str) -> str:
        """Return the title where no other cluster has it; it is taken then."""
        if not title or title in self._titles:
            return ""
        self._titles.add(title)
        return title

    def _written_by_client(self, cluster: int) -> bool:
        known = self._layout.clusters.get(cluster)
        return known is not None and ClusterField.TITLE in known.client_fields

    def _why(self, step: RawStep, otherwise: str) -> str:
        return step.why or otherwise
