"""How memories are routed to clusters: which strategy decides, and what one decision is about."""

from __future__ import annotations

import enum


class Strategy(enum.StrEnum):
    """Who decides where memories go; the others are there to be compared with the first."""

    AGENTIC = "agentic"
    """The nearest cluster, weighed by the SLM as far as it is trusted."""
    COSINE = "cosine"
    """The nearest cluster; the SLM is never asked."""
    KMEANS = "kmeans"
    """A buffer of the first memories is parted by k-means; from then on the nearest cluster (paper, ablation)."""
    GLOBAL = "global"
    """One cluster for everything (paper, ablation)."""


class UnitSetting(enum.StrEnum):
    """What one routing decision is about, where a namespace does not say (`types.namespace.RoutingUnit`)."""

    EPISODE = "episode"
    """A run of consecutive memories of one session."""
    MEMORY = "memory"
    """A single memory, as in the paper."""
