"""What few questions can tell: bounds of a share, whether a gain is more than luck, and preference of positions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

__all__ = ["chance_of_gain", "position_bias", "wilson"]

_Z_95: Final = 1.959964
"""Two-sided 95% quantile of the normal distribution."""


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return the 95% bounds of a share that was observed over `count` questions (E. B. Wilson, JASA 1927).

    Unlike the plain normal bounds they stay in [0, 1], and twenty right answers of twenty are not called certain.
    """
    if count == 0:
        return 0.0, 1.0
    z2 = _Z_95 * _Z_95
    center = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = _Z_95 * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count)) / (1 + z2 / count)
    return max(0.0, center - half), min(1.0, center + half)


def chance_of_gain(gained: int, lost: int) -> float:
    """Return how likely so many gains or more are if gains and losses are equally likely (exact, one-sided).

    Args:
        gained: Questions that only the new way answers right.
        lost: Questions that only the old way answers right.
    """
    changed = gained + lost
    ways: int = sum(math.comb(changed, k) for k in range(gained, changed + 1))
    return float(ways / 2**changed)


def position_bias(chosen: Sequence[int], right: Sequence[int], positions: int) -> float:
    """Return how far answers prefer positions, 0 (none) to 1 (always the same).

    It is the share of answers that would have to move for the chosen positions to be distributed as the right ones
    are, in relation to a model that always names the position that is right least often.

    Args:
        chosen: Position of each answer.
        right: Where the right option stood each time.
        positions: Number of options.
    """
    if not chosen or positions < 2:
        return 0.0
    count = len(chosen)
    took, wanted = Counter(chosen), Counter(right)
    moved = sum(abs(took[p] - wanted[p]) for p in range(positions)) / (2 * count)
    most = 1 - min(wanted[p] for p in range(positions)) / count
    return min(1.0, moved / most)
