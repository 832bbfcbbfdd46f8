"""Is a difference more than chance? Paired bootstrap over questions.

Both methods are scored on the same questions; questions are drawn again with replacement, and the differences of
the means lie within the interval in 95 of 100 draws. Questions of one pool are not quite independent of one
another, so that the true interval is somewhat wider.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

__all__ = ["Difference", "paired_difference"]

_DRAWS: Final = 4_000
_BLOCK: Final = 250
"""Draws made at once: 250 x 2,000 questions are 4 MB."""
_SEED: Final = 20_260_301


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean difference of two methods in the unit of the values, and its 95% interval."""

    mean: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low > 0 or self.high < 0


def paired_difference(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """Return ours less theirs; the two are aligned, one value a question.

    Raises:
        ValueError: They are empty or of different lengths.
    """
    if not ours or len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} and {len(theirs)} values cannot be paired")
    gaps = np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64)
    random = np.random.default_rng(_SEED)
    means = np.concatenate(
        [
            gaps[random.integers(0, len(gaps), size=(_BLOCK, len(gaps)))].mean(axis=1)
            for _ in range(_DRAWS // _BLOCK)
        ]
    )
    low, high = np.percentile(means, [2.5, 97.5])
    return Difference(float(gaps.mean()), float(low), float(high))
