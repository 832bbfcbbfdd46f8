"""How the geometry and the SLM are weighed into one score a candidate: z(cosine) + weight x z(channel).

Routing, selection and the competence probe use the same function, so a weight means the same everywhere. Channel
scores are sums of log-probabilities and cosines lie between -1 and 1: only their standing within one decision can
be compared, which is what a z-score is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["combine", "z_scores"]


def combine(cosines: Sequence[float], channel: Sequence[float], weight: float) -> list[float]:
    """Return one score a candidate, higher is better: z(cosine) + weight x z(channel).

    Args:
        cosines: Cosine of the memory or question with each candidate; at least one.
        channel: The SLM's channel score of each candidate, in nats, in the same order.
        weight: What the SLM's word weighs, 0 (the cosine alone) or more.

    Raises:
        ValueError: Not one channel score a cosine.
    """
    if len(cosines) != len(channel):
        raise ValueError(f"{len(cosines)} cosines and {len(channel)} channel scores")
    near, likely = z_scores(cosines), z_scores(channel)
    return [c + weight * s for c, s in zip(near, likely, strict=True)]


def z_scores(values: Sequence[float]) -> list[float]:
    """Return the values as distances from their mean in standard deviations; zeros where they do not differ."""
    if not values:
        return []
    mean = math.fsum(values) / len(values)
    centered = [value - mean for value in values]
    spread = math.sqrt(math.fsum(one * one for one in centered) / len(values))
    # Values that differ by rounding alone say nothing: their z-scores would be noise of full size.
    if spread <= 1e-9 * max(1.0, *map(abs, values)):
        return [0.0] * len(values)
    return [one / spread for one in centered]
