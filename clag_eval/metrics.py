"""Retrieval metrics, by question and averaged.

With k the first hits (10) and g the evidence: precision is hits / k, recall hits / |g|, F1 that of the two for
each question and averaged then, nDCG has binary gains and its ideal puts min(k, |g|) of the evidence first, hit is
1 when there is any evidence among the first k. `evidence` is recall of what fits into a context of so many tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

__all__ = ["K", "Scores", "mean_scores", "percentile", "score"]

K: Final = 10
"""Hits that count."""

_FEWER: Final = 5


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of one question, each 0 to 1."""

    precision: float
    recall: float
    f1: float
    recall_at_5: float
    ndcg: float
    hit: float


def score(ranked: Sequence[str], evidence: Sequence[str]) -> Scores:
    """Score one ranking.

    Args:
        ranked: Ids, best first; what comes after the first ten does not count.
        evidence: Ids of the evidence, at least one, each once.

    Raises:
        ValueError: There is no evidence, so that nothing can be said of the ranking.
    """
    gold = frozenset(evidence)
    if not gold:
        raise ValueError("a question without evidence cannot be scored")
    first = list(dict.fromkeys(ranked))[:K]
    found = [one in gold for one in first]
    hits = sum(found)
    precision, recall = hits / K, hits / len(gold)
    gain = sum(1 / math.log2(rank + 1) for rank, one in enumerate(found, start=1) if one)
    ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(K, len(gold)) + 1))
    return Scores(
        precision=precision,
        recall=recall,
        f1=2 * precision * recall / (precision + recall) if hits else 0.0,
        recall_at_5=sum(found[:_FEWER]) / len(gold),
        ndcg=gain / ideal,
        hit=float(hits > 0),
    )


def recall_of(shown: Sequence[str], evidence: Sequence[str]) -> float:
    """Return the share of the evidence that is shown."""
    return len(frozenset(evidence).intersection(shown)) / len(frozenset(evidence))


def mean_scores(scores: Sequence[Scores]) -> Mapping[str, float]:
    """Return the means by the names that reports use, in points (0 to 100)."""
    rows: list[dict[str, Any]] = [asdict(one) for one in scores]
    names = {
        "recall": "recall@10",
        "ndcg": "ndcg@10",
        "precision": "precision@10",
        "f1": "f1@10",
        "recall_at_5": "recall@5",
        "hit": "hit@10",
    }
    return {name: 100 * float(np.mean([row[key] for row in rows])) for key, name in names.items()}


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile (`share` 0 to 100) of at least one value."""
    return float(np.percentile(np.asarray(values), share))
