"""Stage one: which episodes, and with them which clusters, may hold the answer (design, section 6.1).

An episode's score is half its centroid's cosine with the query, half its best member's BM25, both min-max scaled.
A cluster is selected when one of its episodes is picked, and scores as its best episode: evidence chooses clusters,
profiles only explain them (the paper chooses by profile; that loses a third of the evidence). Where the SLM chose
among the best clusters (`choosing`), the episodes of its choice have a bonus; no other is left out for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from clag_server.memory.cluster_choice import ClusterChoice
from clag_server.memory.cluster_map import ClusterMap
from clag_server.memory.config import RetrieveConfig
from clag_server.types.retrieval import ClusterCandidate


def min_max(values: NDArray[np.float64], *, floor: float | None = None) -> NDArray[np.float64]:
    """Scale to [0, 1]; all zeros where every value is the same, and for an empty array.

    `floor` is the least value where that is not among the values.
    """
    if len(values) == 0:
        return values
    low, high = float(values.min()), float(values.max())
    if floor is not None:
        low = min(low, floor)
    return (values - low) / (high - low) if high > low else np.zeros_like(values)


@dataclass(frozen=True, slots=True)
class EpisodeScores:
    """Episodes that may be picked, aligned: numbers, clusters, sizes (memories), cosines, best BM25, scores.

    `bonus` is what the SLM's choice adds to each score.
    """

    episodes: NDArray[np.int64]
    clusters: NDArray[np.int64]
    sizes: NDArray[np.int64]
    cosines: NDArray[np.float64]
    lexical: NDArray[np.float64]
    scores: NDArray[np.float64]
    bonus: NDArray[np.float64]

    @property
    def standing(self) -> NDArray[np.float64]:
        """What episodes are picked by: their scores with the bonus."""
        return self.scores + self.bonus


def score_episodes(
    episodes: NDArray[np.int64],
    clusters: NDArray[np.int64],
    sizes: NDArray[np.int64],
    cosines: NDArray[np.float64],
    lexical: NDArray[np.float64],
    *,
    dense_weight: float,
    floor: float | None = None,
) -> EpisodeScores:
    """Score episodes; where no word matches anything, the cosines decide alone.

    `floor` is the lowest cosine of all episodes where these are a choice of them.
    """
    weight = dense_weight if lexical.any() else 1.0
    scores = weight * min_max(cosines, floor=floor) + (1 - weight) * min_max(lexical)
    return EpisodeScores(episodes, clusters, sizes, cosines, lexical, scores, np.zeros_like(scores))


def favour(scored: EpisodeScores, choice: ClusterChoice, config: RetrieveConfig) -> EpisodeScores:
    """Return the scores with a bonus for the episodes of the cluster that the SLM chose."""
    if choice.chosen is None:
        return scored
    bonus = choice.strength * config.choice_bonus
    return replace(scored, bonus=np.where(scored.clusters == choice.chosen, bonus, 0.0))


def best_clusters(scored: EpisodeScores, limit: int) -> list[tuple[int, float]]:
    """Return up to `limit` clusters with the scores of their best episodes, best first (ties by number)."""
    best: dict[int, float] = {}
    for row in np.lexsort((scored.clusters, -scored.scores)):
        best.setdefault(int(scored.clusters[row]), float(scored.scores[row]))
        if len(best) == limit:
            break
    return list(best.items())


def pick_episodes(
    scored: EpisodeScores, config: RetrieveConfig, *, total: int, max_clusters: int
) -> NDArray[np.int64]:
    """Return rows of the picked episodes, best first (ties by episode number).

    Args:
        scored: All candidates.
        config: The gap, share, minima and maxima.
        total: Memories in the namespace (or that match the filter): `share` is a share of these.
        max_clusters: Distinct clusters at most; 0 for no bound. Episodes of further clusters are passed over.
    """
    standing = scored.standing
    order = np.lexsort((scored.episodes, -standing))
    picked: list[int] = []
    clusters: set[int] = set()
    count = 0
    for row in order:
        size, cluster = int(scored.sizes[row]), int(scored.clusters[row])
        enough = len(picked) >= config.min_episodes and count >= config.min_memories
        far = standing[row] < standing[order[0]] - config.gap
        if enough and (far or count + size > config.share * total):
            break
        if picked and (len(picked) >= config.max_episodes or count + size > config.max_candidates):
            break
        if max_clusters and cluster not in clusters and len(clusters) >= max_clusters:
            continue
        picked.append(int(row))
        clusters.add(cluster)
        count += size
    return np.array(picked, dtype=np.int64)


def explain_clusters(
    scored: EpisodeScores,
    picked: NDArray[np.int64],
    cluster_map: ClusterMap,
    config: RetrieveConfig,
    *,
    limit: int,
    choice: ClusterChoice | None = None,
) -> list[ClusterCandidate]:
    """Return every cluster that was weighed, best first: all selected ones, and of the pruned ones the best.

    `limit` bounds the list unless more are selected. `choice` is the SLM's part in it.
    """
    if len(scored.episodes) == 0:
        return []
    choice = choice or ClusterChoice()
    standing = scored.standing
    chosen = np.zeros(len(scored.episodes), dtype=np.int64)
    chosen[picked] = 1
    # The best episode of each cluster comes first when sorted by cluster, then score.
    order = np.lexsort((scored.episodes, -standing, scored.clusters))
    numbers, firsts, inverse = np.unique(scored.clusters[order], return_index=True, return_inverse=True)
    tops = order[firsts]
    episodes = np.bincount(inverse)
    episodes_picked = np.bincount(inverse, weights=chosen[order]).astype(np.int64)
    memories_picked = np.bincount(inverse, weights=(chosen * scored.sizes)[order]).astype(np.int64)
    best_first = np.lexsort((numbers, -standing[tops], episodes_picked == 0))
    shown = best_first[: max(limit, int((episodes_picked > 0).sum()))]
    best = float(standing.max())
    return [
        ClusterCandidate(
            cluster=int(numbers[i]),
            title=cluster_map.clusters[int(numbers[i])].title,
            score=float(scored.scores[tops[i]]),
            selected=bool(episodes_picked[i] > 0),
            memory_count=cluster_map.clusters[int(numbers[i])].memory_count,
            memories_picked=int(memories_picked[i]),
            episodes=int(episodes[i]),
            episodes_picked=int(episodes_picked[i]),
            cosine=float(scored.cosines[tops[i]]),
            reason=_reason(scored, int(tops[i]), int(episodes_picked[i]), int(episodes[i]), best, config),
            slm_vote=choice.vote(int(numbers[i])),
        )
        for i in shown
        if int(numbers[i]) in cluster_map.clusters
    ]


def _reason(scored: EpisodeScores, top: int, taken: int, episodes: int, best: float, config: RetrieveConfig) -> str:
    words = "words match" if scored.lexical[top] > 0 else "no word matches"
    evidence = f"best episode {scored.scores[top]:.2f} (cosine {scored.cosines[top]:.2f}, {words})"
    if scored.bonus[top]:
        evidence = f"chosen by the SLM, +{scored.bonus[top]:.2f}; {evidence}"
    if taken:
        return f"{evidence}; {taken} of {episodes} episodes picked"
    behind = best - float(scored.standing[top])
    if behind > config.gap:
        return f"pruned: {evidence}, {behind:.2f} behind the best"
    return f"pruned: {evidence}, the search space was full"
