"""How well a grouping agrees with labels given by hand, or with what is used together: from the definitions.

Adjusted Rand index after Hubert and Arabie (1985), V-measure after Rosenberg and Hirschberg (2007). Labels and
clusters are sequences of the same length, one entry for each memory; any hashable values.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class VMeasure:
    """Homogeneity, completeness and their harmonic mean, each 0 to 1."""

    homogeneity: float
    completeness: float
    v: float


@dataclass(frozen=True, slots=True)
class Togetherness:
    """Pairs that are used together: how many there are, and which share of them is in one cluster.

    `by_chance` is that share for pairs drawn at random from all memories: one large cluster has both near 1.
    """

    pairs: int
    share: float
    by_chance: float


def adjusted_rand(labels: Sequence[Hashable], clusters: Sequence[Hashable]) -> float:
    """Agreement of two partitions over all pairs, 0 for chance, 1 for equal ones; 1 where both are trivial alike.

    Raises:
        ValueError: The lengths differ.
    """
    together = _pairs(_contingency(labels, clusters))
    of_labels, of_clusters = _pairs(Counter(labels)), _pairs(Counter(clusters))
    total = math.comb(len(labels), 2)
    if total == 0:
        return 1.0
    expected = of_labels * of_clusters / total
    most = (of_labels + of_clusters) / 2
    return 1.0 if most == expected else (together - expected) / (most - expected)


def v_measure(labels: Sequence[Hashable], clusters: Sequence[Hashable]) -> VMeasure:
    """Whether clusters hold one label each (homogeneity), and labels are in one cluster each (completeness).

    Raises:
        ValueError: The lengths differ.
    """
    both = _entropy(_contingency(labels, clusters))
    of_labels, of_clusters = _entropy(Counter(labels)), _entropy(Counter(clusters))
    # What is left to know of the labels in a cluster is H(both) - H(clusters), and the other way round.
    homogeneity = 1.0 - _share(both - of_clusters, of_labels)
    completeness = 1.0 - _share(both - of_labels, of_clusters)
    total = homogeneity + completeness
    return VMeasure(homogeneity, completeness, 2 * homogeneity * completeness / total if total else 0.0)


def togetherness(clusters: Mapping[str, Hashable], used_together: Sequence[Sequence[str]]) -> Togetherness:
    """How often two memories that are used together share a cluster.

    Args:
        clusters: The cluster of each memory, by id.
        used_together: Sets of ids, such as the evidence of one question; unknown ids are left out, and a pair
            counts once however many sets have it.
    """
    pairs = {
        pair
        for group in used_together
        for pair in itertools.combinations(sorted({one for one in group if one in clusters}), 2)
    }
    shared = sum(clusters[a] == clusters[b] for a, b in pairs)
    total = math.comb(len(clusters), 2)
    chance = _pairs(Counter(clusters.values())) / total if total else 0.0
    return Togetherness(len(pairs), shared / len(pairs) if pairs else 0.0, chance)


def _contingency(labels: Sequence[Hashable], clusters: Sequence[Hashable]) -> Counter[tuple[Hashable, Hashable]]:
    return Counter(zip(labels, clusters, strict=True))


def _pairs(counts: Counter[Any]) -> int:
    return sum(math.comb(count, 2) for count in counts.values())


def _entropy(counts: Counter[Any]) -> float:
    """Entropy in nats."""
    total = sum(counts.values())
    return -sum(count / total * math.log(count / total) for count in counts.values())


def _share(left: float, whole: float) -> float:
    """`left / whole`, 0 where there is nothing to know; rounding may leave `left` just below 0."""
    return max(left, 0.0) / whole if whole > 0 else 0.0
