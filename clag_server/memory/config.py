"""Thresholds of the algorithms, with their measured defaults (design, sections 4 to 6) and their effect."""

from __future__ import annotations

from dataclasses import dataclass

from clag_server.types.competence import TrustPolicy


@dataclass(frozen=True, slots=True)
class IngestConfig:
    """Bounds of the ingest path.

    Attributes:
        window_items: Credit window of a stream: items sent but not acknowledged. Larger hides more latency and
            holds more memory.
        max_batch_items: Items in one frame.
        max_batch_bytes: Bytes of one frame.
        embed_batch: Memories embedded in one model call; larger is faster and delays questions longer.
        max_attempts: Failed attempts at one stage after which a memory is quarantined.
        retry_base_s: Pause after a failed attempt at one memory.
        auto_create_namespaces: Whether the first ingest creates its namespace.
        max_namespaces: Namespaces that the server takes; 0 sets no limit.
        expiry_sweep_s: Longest time until a memory that expired is deleted (it is not retrieved at once).
        pipeline: False only stores: nothing is embedded or organized until a start with True (maintenance, and
            the measurement of the contract path).
    """

    window_items: int = 1024
    max_batch_items: int = 256
    max_batch_bytes: int = 1 << 20
    embed_batch: int = 64
    max_attempts: int = 5
    retry_base_s: float = 0.5
    auto_create_namespaces: bool = True
    max_namespaces: int = 10_000
    expiry_sweep_s: float = 30.0
    pipeline: bool = True


@dataclass(frozen=True, slots=True)
class OrganizeConfig:
    """Episodes, clusters and evolution.

    Attributes:
        episode_max: Members at which an episode closes. Measured best near 20 on chat.
        episode_cosine: A memory whose cosine to the open episode's mean, seen from what all memories have in
            common, is lower starts a new episode.
        episode_center_prior: Memories of nothing averaged into what all have in common; above 0. It keeps the
            first memories of a namespace from being taken for what is common.
        episode_idle_s: An open episode without a new member for so long is closed.
        cluster_cosine: A closed episode nearer than this to a cluster, seen from what all episodes have in
            common, joins it; else a cluster is born. Lower gives fewer, larger clusters.
        cluster_center_prior: Episodes of nothing averaged into what all have in common; above 0.
        cluster_max: Memories above which a cluster splits in two (the paper's bound).
        candidates: Clusters, nearest first, that the SLM weighs.
        trust: Who says how far the SLM is trusted: "probe" (the competence probe), "full" (every skill, for
            measurements), "none".
        annotate: Who writes context, keywords and tags: "terms" (deterministic, from the most distinctive terms)
            or "slm" (falls back to terms for unusable answers). Small models repeat themselves and leak words of
            the prompt, so the default asks no SLM.
        vote: Whether the SLM's channel score is computed and recorded when an episode is routed.
        evolve_batch: Memories evolved in one round.
        link_neighbours: Nearest members of the cluster that a new memory may link to.
        link_cosine: Least cosine of a SIMILAR link.
        duplicate_cosine: Least cosine of a DUPLICATE link (with equal words).
        max_links: Links kept on one memory.
    """

    episode_max: int = 20
    episode_cosine: float = 0.10
    episode_idle_s: float = 60.0
    cluster_cosine: float = 0.25
    cluster_center_prior: float = 1.0
    episode_center_prior: float = 50.0
    cluster_max: int = 300
    candidates: int = 5
    trust: TrustPolicy = TrustPolicy.PROBE
    annotate: str = "terms"
    vote: bool = True
    evolve_batch: int = 64
    link_neighbours: int = 5
    link_cosine: float = 0.55
    duplicate_cosine: float = 0.97
    max_links: int = 16


@dataclass(frozen=True, slots=True)
class RetrieveConfig:
    """Two-stage retrieval; defaults are those of the lab reference.

    Attributes:
        dense_weight: Weight of the dense score in both convex sums (the lexical score has the rest).
        gap: Episodes are picked until the score falls this far below the best.
        share: ... or until this share of the namespace's memories is picked,
        min_episodes: ... but at least so many episodes
        min_memories: ... and so many memories,
        max_episodes: ... and at most so many episodes
        max_candidates: ... and so many memories.
        net: Dense and lexical hits each that join from outside the picked episodes.
        net_partitions: Nearest clusters whose partitions the dense net searches.
        neighbour_weight: Weight of the previous and the next memory's score in the same episode.
        episode_weight: Weight of the best score in the same episode.
        lexical_limit: Lexical matches that are looked at.
        exact_episodes: Episodes up to which every one is scored; beyond, those near the query and those with its
            words. Higher is exact for longer, and slower.
        near_episodes: Episodes of the nearest clusters that are scored then.
        default_memories: `max_memories` where a query leaves it unset.
        cluster_limit: Clusters listed in the trace, selected ones always.
        max_wait_s: Longest wait for `at_least_as_fresh` where the call has no deadline.
        cache_vectors: Vectors of recently used episodes kept in memory (memories).
    """

    dense_weight: float = 0.5
    gap: float = 0.35
    share: float = 0.20
    min_episodes: int = 3
    min_memories: int = 40
    max_episodes: int = 64
    max_candidates: int = 2000
    net: int = 10
    net_partitions: int = 10
    neighbour_weight: float = 0.2
    episode_weight: float = 0.4
    lexical_limit: int = 2000
    exact_episodes: int = 8_192
    near_episodes: int = 4_096
    default_memories: int = 10
    cluster_limit: int = 32
    max_wait_s: float = 10.0
    cache_vectors: int = 50_000
