"""A plan in the making: where every episode would be after the steps so far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clag_server.memory.reorganizing.layout import Layout, Numbers
from clag_server.memory.reorganizing.plan import Plan, PlanStep, StepKind
from clag_server.types.memory import DecidedBy

__all__ = ["PlanDraft"]


class PlanDraft:
    """Collects steps over one layout, without changing it.

    Args:
        layout: Where everything is.
        by: Who plans.
    """

    def __init__(self, layout: Layout, by: DecidedBy) -> None:
        self.layout = layout
        self.by = by
        self.homes: Numbers = layout.homes.copy()
        self.steps: list[PlanStep] = []
        self.dropped = 0
        self.missed = ""
        """Why it does not lead to as many clusters as were asked for; "" where it does."""
        self._founded = 0

    @property
    def clusters(self) -> int:
        """Active clusters that there would be."""
        emptied = len(np.setdiff1d(self.layout.homes, self.homes))
        founded = len(np.setdiff1d(self.homes, self.layout.homes))
        return self.layout.active - emptied + founded

    def may_touch(self, cluster: int) -> bool:
        """Whether a step may take from a cluster or add to it: one of the plan's own, or one that is movable."""
        return bool((self.homes == cluster).any()) and (cluster < 0 or cluster in self.layout.movable)

    def size(self, cluster: int) -> int:
        """Memories in the closed episodes that would be in a cluster."""
        return int(self.layout.sizes[self.homes == cluster].sum())

    def title(self, cluster: int) -> str:
        """Title of a cluster before the plan, "" for a new one."""
        known = self.layout.clusters.get(cluster)
        return known.title if known is not None else ""

    def merge(self, target: int, sources: Sequence[int], reason: str, *, title: str = "") -> None:
        """Take all that is in the sources to the target."""
        rows = np.flatnonzero(np.isin(self.homes, np.array(sources, dtype=np.int64)))
        self._move(StepKind.MERGE, tuple(sources), target, rows, reason, old=self.title(target), title=title)

    def found(self, kind: StepKind, sources: Sequence[int], rows: Numbers, reason: str, *, title: str = "") -> int:
        """Found a cluster with some rows (SPLIT, NEW); returns its provisional number."""
        self._founded -= 1
        old = self.title(sources[0]) if len(sources) == 1 else ""
        self._move(kind, tuple(sources), self._founded, rows, reason, old=old, title=title)
        return self._founded

    def reassign(self, source: int, target: int, rows: Numbers, reason: str) -> None:
        """Move rows from one cluster to another."""
        self._move(
            StepKind.REASSIGN, (source,), target, rows, reason, old=self.title(source), title=self.title(target)
        )

    def rename(self, cluster: int, title: str, reason: str) -> None:
        """Give a cluster another title."""
        step = PlanStep(
            kind=StepKind.RENAME,
            sources=(cluster,),
            target=cluster,
            episodes=(),
            memories=self.size(cluster),
            reason=reason,
            old_title=self.title(cluster),
            new_title=title,
            title_by=self.by,
        )
        self.steps.append(step)

    def plan(self, *, attempts: int) -> Plan:
        """Return what was drafted."""
        return Plan(
            steps=tuple(self.steps),
            by=self.by,
            clusters_before=self.layout.active,
            clusters_after=self.clusters,
            attempts=attempts,
            dropped=self.dropped,
            missed=self.missed,
        )

    def _move(
        self,
        kind: StepKind,
        sources: tuple[int, ...],
        target: int,
        rows: Numbers,
        reason: str,
        *,
        old: str,
        title: str = "",
    ) -> None:
        self.steps.append(
            PlanStep(
                kind=kind,
                sources=sources,
                target=target,
                episodes=tuple(int(e) for e in self.layout.episodes[rows]),
                memories=int(self.layout.sizes[rows].sum()),
                reason=reason,
                old_title=old,
                new_title=title,
                title_by=self.by,
            )
        )
        self.homes[rows] = target
