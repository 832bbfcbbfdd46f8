"""Splitting clusters by vectors: what holds two things, what is too large, and as many as are asked for.

Coarse first, then fine: every cluster is looked at once, the loosest first; where a number of clusters was
asked for and is not reached, the parts are parted again, and in the end also into single episodes. Whatever
comes of a cluster is told as one step for each part that leaves it.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from clag_server.memory.config import OrganizeConfig
from clag_server.memory.reorganizing.draft import PlanDraft
from clag_server.memory.reorganizing.layout import Layout, Numbers, by_home, fit, unit_rows
from clag_server.memory.reorganizing.plan import StepKind
from clag_server.memory.splitting import two_means

__all__ = ["part"]

_LEAST_EPISODES = 4
"""Episodes below which a cluster is not split: two of each half at least, or the halves are single episodes.
Only a number of clusters that is asked for, and not reached otherwise, makes smaller ones."""

_LEAST_SHARE = 0.1
"""Least share of a cluster's memories in the smaller part of a split; the same goes for it."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """Some episodes of a cluster in two.

    Attributes:
        staying: The rows of those that stay together (n,),
        leaving: and of the smaller part (m,).
        own: Cosine of each, those that stay first, with the rest of its part (n + m,).
        beside: Cosine of each with the other part (n + m,).
        likeness: Cosine of the parts' centroids.
    """

    staying: Numbers
    leaving: Numbers
    own: NDArray[np.float32]
    beside: NDArray[np.float32]
    likeness: float

    @property
    def rows(self) -> Numbers:
        """The rows of all of them (n + m,)."""
        return np.concatenate([self.staying, self.leaving])

    @property
    def margin(self) -> float:
        """How far the parts are apart."""
        return float((self.own - self.beside).mean())


@dataclass(slots=True)
class _Pieces:
    """Clusters in pieces: rows that stay together, and why each cluster was parted first."""

    of: dict[int, list[Numbers]]
    reasons: dict[int, str] = field(default_factory=dict)
    more: int = 0
    """Pieces beyond one for each cluster."""

    def part(self, number: int, parts: _Parts, reason: str) -> None:
        """Put two parts in the place of the piece that they are made of."""
        pieces = self.of[number]
        at = next(i for i, rows in enumerate(pieces) if rows[0] == parts.rows.min())
        pieces[at : at + 1] = [np.sort(parts.staying), np.sort(parts.leaving)]
        self.reasons.setdefault(number, reason)
        self.more += 1


def part(draft: PlanDraft, config: OrganizeConfig, target: int, *, but: set[int]) -> None:
    """Split what holds two parts and what is too large; with a target, also the loosest until there are as many.

    Args:
        draft: The plan so far.
        config: Thresholds.
        target: Clusters that were asked for, 0 for no number.
        but: Clusters that took others in: they are left alone.
    """
    layout, before = draft.layout, draft.clusters
    whole = {n: rows for n, rows in by_home(draft.homes).items() if n in layout.movable and n not in but}
    pieces = _Pieces({number: [rows] for number, rows in whole.items()})
    found = {number: parts for number, rows in whole.items() if (parts := _parts(layout, rows)) is not None}
    wanted = _that_gain(
        draft,
        {
            number: parts
            for number, parts in found.items()
            if parts.margin >= config.reorganize_split_margin and parts.likeness < config.cluster_cosine
        },
    )

    def short() -> bool:
        return bool(target) and before + pieces.more < target

    for number, parts in sorted(found.items(), key=lambda one: (-one[1].margin, one[0])):
        too_large = _memories(layout, parts.rows) > config.cluster_max
        if too_large or short() or (number in wanted and not target):
            pieces.part(number, parts, _reason(parts, too_large=too_large, asked=short() and number not in wanted))
    _again(layout, pieces, config, short=short, strict=True)
    _again(layout, pieces, config, short=short, strict=False)
    for number, rows in sorted(pieces.of.items()):
        _, *leaving = sorted(rows, key=lambda some: (-_memories(layout, some), int(some[0])))
        for some in leaving:
            draft.found(StepKind.SPLIT, [number], some, pieces.reasons[number])


def _again(
    layout: Layout, pieces: _Pieces, config: OrganizeConfig, *, short: Callable[[], bool], strict: bool
) -> None:
    """Part pieces on, the loosest first, while there are too few of them; one that is too large in any case."""
    serial = itertools.count()
    queue: list[tuple[float, int, int, _Parts]] = []

    def look(number: int, rows: Numbers) -> None:
        if short() or _memories(layout, rows) > config.cluster_max:
            parts = _parts(layout, rows, strict=strict)
            if parts is not None:
                # Of what is hardly parted at all, the largest first: the number must come from somewhere.
                loose = parts.margin if strict else float(_memories(layout, rows))
                heapq.heappush(queue, (-loose, number, next(serial), parts))

    for number, all_rows in sorted(pieces.of.items()):
        for rows in list(all_rows):
            look(number, rows)
    while queue:
        _, number, _, parts = heapq.heappop(queue)
        too_large = _memories(layout, parts.rows) > config.cluster_max
        if short() or too_large:
            pieces.part(number, parts, _reason(parts, too_large=too_large, asked=True))
            look(number, np.sort(parts.staying))
            look(number, np.sort(parts.leaving))


def _reason(parts: _Parts, *, too_large: bool, asked: bool) -> str:
    if too_large:
        return "it grew too large"
    if asked and parts.margin <= 0:
        return "more clusters were asked for, and these two parts of it are the least alike"
    apart = f"two parts that are apart (by {parts.margin:.2f})"
    return f"more clusters were asked for, and it holds {apart}" if asked else f"it holds {apart}"


def _memories(layout: Layout, rows: Numbers) -> int:
    return int(layout.sizes[rows].sum())


def _parts(layout: Layout, rows: Numbers, *, strict: bool = True) -> _Parts | None:
    """Part some episodes; None where that cannot be, or (`strict`) would leave next to nothing."""
    vectors = layout.vectors
    if len(rows) < (_LEAST_EPISODES if strict else 2):
        return None
    mask = two_means(vectors[rows])
    if mask is None:
        return None
    left, gone = rows[~mask], rows[mask]
    tiny = min(len(gone), len(left)) < 2 or _memories(layout, gone) < _LEAST_SHARE * _memories(layout, rows)
    if strict and tiny:
        return None
    sums = np.stack([vectors[some].sum(axis=0) for some in (left, gone)])
    heads = unit_rows(sums)
    rests = [unit_rows(sums[here] - vectors[some]) for here, some in ((0, left), (1, gone))]
    both = np.concatenate([left, gone])
    return _Parts(
        staying=left,
        leaving=gone,
        own=np.einsum("ij,ij->i", np.concatenate(rests), vectors[both]),
        beside=np.concatenate([vectors[left] @ heads[1], vectors[gone] @ heads[0]]),
        likeness=float(heads[0] @ heads[1]),
    )


def _that_gain(draft: PlanDraft, found: Mapping[int, _Parts]) -> set[int]:
    """Return those whose episodes would be at home as well as now or better, among all clusters."""
    if not found:
        return set()
    now = fit(draft.layout, draft.homes, np.concatenate([parts.rows for parts in found.values()]))
    gained, start = set(), 0
    for number, parts in found.items():
        here = slice(start, start + len(parts.rows))
        start = here.stop
        after = parts.own - np.maximum(np.maximum(parts.beside, now.other[here]), 0.0)
        if after.mean() >= now.margins[here].mean():
            gained.add(number)
    return gained
