"""A plan by vectors alone: deterministic, and the stand-in wherever no language model is trusted.

    merge: clusters whose episodes are as near to the other cluster as to their own
    split: clusters of two well separated parts (`parting`)
    reassign: episodes that another cluster is clearly nearer to

Merging and splitting have a gap between their thresholds, so that what one plan does the next does not undo.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clag_server.memory.config import OrganizeConfig
from clag_server.memory.reorganizing.draft import PlanDraft
from clag_server.memory.reorganizing.layout import Layout, by_home, centroids, fit, unit_rows
from clag_server.memory.reorganizing.parting import part
from clag_server.types.memory import DecidedBy

__all__ = ["plan_by_vectors"]

_UNLIKE = 10.0
"""Added to the gap of clusters that routing would not have joined: only a target makes one of them."""


def plan_by_vectors(layout: Layout, config: OrganizeConfig, *, target: int) -> PlanDraft:
    """Return the plan; `target` is how many active clusters to aim for, 0 leaves it to the memories.

    A target is reached unless clusters that must not be touched, the bound of a cluster or episodes that cannot be
    parted are in the way; then `missed` of the draft says so.
    """
    draft = PlanDraft(layout, DecidedBy.VECTOR)
    if len(layout.episodes):
        merged = _merge(draft, config, target)
        part(draft, config, target, but=merged)
        _reassign(draft, config, keep=bool(target))
    draft.missed = missed(draft, config, target)
    return draft


def missed(draft: PlanDraft, config: OrganizeConfig, target: int) -> str:
    """Say why a plan by vectors does not lead to as many clusters as were asked for; "" where it does."""
    if not target or draft.clusters == target:
        return ""
    held = draft.layout.active - len(draft.layout.movable)
    stay = f"; {held} that are pinned, not asked for or without a closed episode stay as they are" if held else ""
    if draft.clusters > target:
        why = f"no two of them may be merged into one of at most {config.cluster_max} memories"
    else:
        why = "what is left in each is one episode, or episodes that are alike"
    return f"it leads to {draft.clusters} clusters, not {target}: {why}{stay}"


# --- merging
_NEAREST = "fewer clusters were asked for, and of all there are these are nearest to being one"


def _merge(draft: PlanDraft, config: OrganizeConfig, target: int) -> set[int]:
    """Merge the pair that is nearest to being one, again and again; returns the clusters that took others in."""
    pairs = _Pairs(draft, config)
    groups: dict[int, list[int]] = {}
    forced: set[int] = set()
    count = draft.layout.active
    while True:
        found = pairs.nearest()
        if found is None or (target and count <= target):
            break
        gap, into, other = found
        if gap > config.reorganize_merge_gap and not target:
            break
        if gap > config.reorganize_merge_gap or other in forced:
            forced.add(into)
        pairs.join(into, other)
        groups.setdefault(into, []).extend([other, *groups.pop(other, [])])
        count -= 1
    for into, others in sorted(groups.items()):
        names = "it" if len(others) == 1 else "they"
        near = f"{names} and the cluster are as near to each other as to themselves"
        draft.merge(into, sorted(others), _NEAREST if into in forced else near)
    return set(groups)


class _Pairs:
    """How far every two clusters are from being one: how much nearer their episodes are to their own.

    The mean cosine of a cluster's episodes with another's centroid is one product, because the mean of products
    with one vector is the product with the mean.
    """

    def __init__(self, draft: PlanDraft, config: OrganizeConfig) -> None:
        layout = draft.layout
        self._config = config
        self._layout = layout
        rows = np.flatnonzero(np.isin(layout.homes, np.array(sorted(layout.movable), dtype=np.int64)))
        homes = layout.homes[rows]
        self.numbers, self._sums, self._counts = centroids(layout.vectors[rows], homes)
        own = fit(layout, layout.homes, rows).own
        groups = by_home(homes)
        self._rows = {number: rows[part] for number, part in groups.items()}
        self._own = np.array([_mean(own[part]) for part in groups.values()])
        self._memories = np.array([int(layout.sizes[part].sum()) for part in self._rows.values()], dtype=np.int64)
        known = self._own[~np.isnan(self._own)]
        # A cluster of one episode has no cohesion of its own: it is held to what is usual here.
        self._usual = max(float(known.mean()) if len(known) else 0.0, config.cluster_cosine)
        self._heads = unit_rows(self._sums)
        self._means = self._sums / self._counts[:, None]
        self._gaps = self._all_gaps()

    def nearest(self) -> tuple[float, int, int] | None:
        """Return (gap, the larger cluster, the other) of the pair that is nearest to being one."""
        if len(self.numbers) < 2:
            return None
        at = int(np.argmin(self._gaps))
        i, j = divmod(at, len(self.numbers))
        gap = float(self._gaps[i, j])
        if not np.isfinite(gap):
            return None
        if (self._memories[j], -self.numbers[j]) > (self._memories[i], -self.numbers[i]):
            i, j = j, i
        return gap, int(self.numbers[i]), int(self.numbers[j])

    def join(self, into: int, other: int) -> None:
        """Make two clusters one."""
        i, j = (int(np.searchsorted(self.numbers, number)) for number in (into, other))
        self._rows[into] = np.concatenate([self._rows[into], self._rows.pop(other)])
        self._sums[i] += self._sums[j]
        self._counts[i] += self._counts[j]
        self._heads[i] = unit_rows(self._sums[i][None, :])[0]
        self._means[i] = self._sums[i] / self._counts[i]
        self._memories[i] += self._memories[j]
        vectors = self._layout.vectors[self._rows[into]]
        rest = unit_rows(self._sums[i] - vectors)
        self._own[i] = float(np.einsum("ij,ij->i", rest, vectors).mean())
        self._counts[j] = 0
        self._gaps[j, :] = self._gaps[:, j] = np.inf
        row = self._gap_of(i)
        self._gaps[i, :] = self._gaps[:, i] = row

    def _all_gaps(self) -> NDArray[np.float64]:
        """Return all gaps (k, k) as `_gap_of` gives each row, by one product."""
        near = self._means @ self._heads.T
        own = np.where(np.isnan(self._own), self._usual, self._own)
        gaps: NDArray[np.float64] = np.maximum(own[:, None] - near, own[None, :] - near.T)
        gaps[np.minimum(near, near.T) < self._config.cluster_cosine] += _UNLIKE
        gaps[self._memories[:, None] + self._memories[None, :] > self._config.cluster_max] = np.inf
        np.fill_diagonal(gaps, np.inf)
        return gaps

    def _gap_of(self, i: int) -> NDArray[np.float64]:
        """Return a cluster's gap with each (k,): infinite with itself, with what is gone, and past the bound."""
        there = (self._heads @ self._means[i]).astype(np.float64)
        back = (self._means @ self._heads[i]).astype(np.float64)
        own = np.where(np.isnan(self._own), self._usual, self._own)
        gaps: NDArray[np.float64] = np.maximum(own[i] - there, own - back)
        gaps[np.minimum(there, back) < self._config.cluster_cosine] += _UNLIKE
        gaps[self._memories + self._memories[i] > self._config.cluster_max] = np.inf
        gaps[self._counts == 0] = np.inf
        gaps[i] = np.inf
        return gaps


# --- moving
def _reassign(draft: PlanDraft, config: OrganizeConfig, *, keep: bool) -> None:
    """Move episodes to clusters that are clearly nearer, those that gain most first, as far as there is room.

    `keep`: no cluster loses its last episode, for their number was asked for.
    """
    layout = draft.layout
    allowed = np.array(
        sorted({*layout.movable, *(int(n) for n in np.unique(draft.homes) if n < 0)}), dtype=np.int64
    )
    rows = np.flatnonzero(np.isin(draft.homes, allowed))
    if not len(rows):
        return
    now = fit(layout, draft.homes, rows)
    gain = now.other - now.own  # NaN for one that is alone: it is for merging
    better = (gain >= config.reorganize_move_margin) & (now.other >= config.cluster_cosine)
    better &= np.isin(now.nearest, allowed)
    chosen = np.flatnonzero(better)
    room = {int(n): config.cluster_max - draft.size(int(n)) for n in np.unique(now.nearest[chosen])}
    left = {number: len(some) for number, some in by_home(draft.homes).items()}
    moves: dict[tuple[int, int], list[int]] = {}
    for at in sorted(chosen, key=lambda at: (-gain[at], int(rows[at]))):
        row, into = int(rows[at]), int(now.nearest[at])
        source = int(draft.homes[row])
        if layout.sizes[row] <= room[into] and not (keep and left[source] == 1):
            room[into] -= int(layout.sizes[row])
            left[source] -= 1
            moves.setdefault((source, into), []).append(row)
    for (source, into), some in sorted(moves.items()):
        draft.reassign(source, into, np.array(sorted(some), dtype=np.int64), "the other cluster is clearly nearer")


def _mean(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")
