"""Thresholds of the algorithms, with their measured defaults (design, sections 4 to 6) and their effect."""

from __future__ import annotations

from dataclasses import dataclass

from clag_server.types.competence import ChoiceSetting, TrustPolicy
from clag_server.types.memory import Annotator
from clag_server.types.routing import Strategy, UnitSetting


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
        strategy: Who decides where memories go: "agentic" (vectors, and the SLM as far as it is trusted), "cosine"
            (vectors alone), "kmeans" and "global" (to compare with).
        routing_unit: What a decision is about where a namespace does not say: "episode" or "memory".
        candidates: Clusters, nearest first, that are weighed; at most 15.
        pull_cosine: An episode that founded a cluster may be taken by the SLM to one at least so near, below
            `cluster_cosine`; at or above that, it never is.
        vote_batch: Episodes that the SLM is asked about at once.
        cold_start: With strategy "kmeans", memories that are gathered before they are parted,
        cold_clusters: ... into so many clusters.
        trust: Who says how far the SLM is trusted: "probe" (the competence probe), "full" (every skill, for
            measurements), "none".
        choice: How the SLM is asked which cluster a memory belongs to: "auto" (as the competence probe found best
            for this model), "channel" (the likelihood of the memory after each cluster's profile), "letter" (the
            likelihood of each cluster's letter) or "json" (the letter, written).
        probe_auto: Whether a language model that was not probed yet is probed by itself, in the background.
        annotate: Who writes context, keywords and tags, and judges links: "auto" (the SLM as far as it is trusted
            with annotation and with evolution), "terms" (deterministic, from the most distinctive terms) or "slm"
            (in any case; the terms stand in for unusable answers).
        slm_neighbours: Nearest neighbours that the SLM is shown with a new memory, at most 8. More find more links
            and cost a small model about a third of a second each on two cores.
        slm_calls_per_hour: Memories of one namespace that the SLM is asked about in an hour; 0: no bound. Beyond it
            the deterministic stand-ins are written.
        slm_behind_s: How long a backlog of more than one round may last, in seconds, until the rest of it is done
            without the SLM; 0: for ever. Imports that put the SLM off are not hurried.
        slm_timeout_s: Longest wait for one answer, in seconds; 0: for ever.
        find_conflicts: Whether facts that say the same with another value are linked as contradicting each other,
            also without an SLM.
        evolve_batch: Memories evolved in one round; 0 evolves none (maintenance, and measurements of the rest).
        link_neighbours: Nearest members of the cluster that a new memory may link to.
        link_cosine: Least cosine of a SIMILAR link.
        duplicate_cosine: Least cosine of a DUPLICATE link (with equal words).
        max_links: Links kept on one memory.
        reorganize_auto: Whether re-organization starts by itself in namespaces that do not say so themselves.
        reorganize_check_s: How often open namespaces are looked at for a reason to start, in seconds.
        reorganize_least: Fewest new memories since the last one for any reason to count.
        reorganize_memories: Starts after so many new memories; 0: never for that.
        reorganize_rounds: Starts after so many new episodes; 0: never for that.
        reorganize_growth: Starts when the clusters have grown by this share; 0: never for that.
        reorganize_every_s: Starts so long after the last, in seconds, if something is new; 0: never for that.
        reorganize_on_scene: Whether a client's scene switch starts one.
        reorganize_sample: Most memories that the SLM is shown for one plan; 50 at least are sampled.
        reorganize_prompt_tokens: Longest prompt that asks for a plan, in tokens. A model with a longer context sees
            more clusters at once with more.
        reorganize_merge_gap: Clusters merge when their episodes are at most this much nearer to their own cluster
            than to the other (difference of cosines). Higher merges more.
        reorganize_split_margin: A cluster splits where the episodes of each half are at least this much nearer to
            their half than to the other, and the halves would not have joined (`cluster_cosine`). Lower: more.
        reorganize_move_margin: An episode moves when another cluster is at least this much nearer than its own.
        reorganize_tolerance: How far a plan may lower the mean margin of episodes (own cluster's cosine less that
            of the nearest other) before it is rolled back.
        reorganize_contradictions: Share of the checked assignments that may speak against a plan.
        archive_after_days: Clusters without a new member or access for so many days are archived where a namespace
            does not say otherwise; 0: never.
        archive_check_s: How often idle clusters are looked for, in seconds.
    """

    episode_max: int = 20
    episode_cosine: float = 0.10
    episode_idle_s: float = 60.0
    cluster_cosine: float = 0.25
    cluster_center_prior: float = 1.0
    episode_center_prior: float = 50.0
    cluster_max: int = 300
    strategy: Strategy = Strategy.AGENTIC
    routing_unit: UnitSetting = UnitSetting.EPISODE
    candidates: int = 5
    pull_cosine: float = 0.0
    vote_batch: int = 16
    cold_start: int = 100
    cold_clusters: int = 3
    trust: TrustPolicy = TrustPolicy.PROBE
    choice: ChoiceSetting = ChoiceSetting.AUTO
    probe_auto: bool = True
    annotate: Annotator = Annotator.AUTO
    slm_neighbours: int = 3
    slm_calls_per_hour: int = 0
    slm_behind_s: float = 600.0
    slm_timeout_s: float = 300.0
    find_conflicts: bool = True
    evolve_batch: int = 96
    link_neighbours: int = 5
    link_cosine: float = 0.55
    duplicate_cosine: float = 0.97
    max_links: int = 16
    reorganize_auto: bool = False
    reorganize_check_s: float = 30.0
    reorganize_least: int = 20
    reorganize_memories: int = 500
    reorganize_rounds: int = 0
    reorganize_growth: float = 0.5
    reorganize_every_s: float = 0.0
    reorganize_on_scene: bool = True
    reorganize_sample: int = 150
    reorganize_prompt_tokens: int = 1500
    reorganize_merge_gap: float = 0.05
    reorganize_split_margin: float = 0.25
    reorganize_move_margin: float = 0.15
    reorganize_tolerance: float = 0.02
    reorganize_contradictions: float = 0.34
    archive_after_days: float = 0.0
    archive_check_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class RetrieveConfig:
    """Two-stage retrieval; defaults are those of the lab reference.

    Attributes:
        dense_weight: Weight of the dense score in both convex sums (the lexical score has the rest).
        gap: Episodes are picked until the score falls this far below the best.
        share: ... or until this share of the namespace's memories is picked,
        min_episodes: ... but at least so many episodes
        min_memories: ... and so many memories,
        max_episodes: ... and at most so many episodes (all of LoCoMo in one namespace: 16 find 69.4 where 64 found
            68.9, and a question among a million memories reads a quarter),
        max_candidates: ... and so many memories.
        net: Dense and lexical hits each that join from outside the picked episodes.
        net_partitions: Nearest clusters whose partitions the dense net searches,
        net_partitions_large: and in a namespace of more than `large_memories`, where clusters share partitions of
            thousands (all of LoCoMo in one namespace: 69.3 with 3, 69.4 with 10 or all).
        neighbour_weight: Weight of the previous and the next memory's score in the same episode.
        episode_weight: Weight of the best score in the same episode.
        speaker_weight: What a memory gains whose speaker the question names, where it does not name them all; 0:
            nothing (LoCoMo, where all but the trick questions ask about one of two speakers: 0.1 finds +0.3 at
            recall@10, +1.1 at nDCG@10).
        lexical_limit: Lexical matches that are looked at,
        lexical_limit_large: and in a namespace of more than `large_memories`: the episode of each has to be looked
            up, at 5 us each among a million memories.
        large_memories: See there.
        exact_episodes: Episodes up to which every one is scored; beyond, those near the query and those with its
            words. Higher is exact for longer, and slower.
        near_episodes: Episodes of the nearest clusters that are scored then.
        default_memories: `max_memories` where a query leaves it unset.
        cluster_limit: Clusters listed in the trace, selected ones always.
        recency_weight: What a memory of this moment gains in its score over one of long ago; 0: age does not count.
            Scores lie between 0 and about 1.6.
        access_weight: What a memory that is often returned gains over one that never was; 0: use does not count.
        half_life_days: After so many days, what age and use add is half as much.
        max_wait_s: Longest wait for `at_least_as_fresh` where the call has no deadline.
        cache_mib: Memory for the vectors of recently used episodes, of all namespaces together; 0: none is kept.
        answer_relevance: `Answer` refuses a question where the memories found bear on it with less likelihood than
            this, see `memory.relevance`; 0: never.
        archived_cosine: An archived cluster takes part in a question that is at least this near to its centroid,
            seen from what all episodes have in common, and not nearer to an active one. 1: never.
        choice_clusters: Clusters with the best episodes that the SLM is shown when it chooses for a question.
        choice_bonus: What the SLM's choice adds to the scores (0 to 1) of the chosen cluster's episodes,
        choice_rank_bonus: and to those (0 to about 1.6) of its memories; half of both where the episodes' scores
            say the same. Higher gains more from a model that is right and loses more to one that is not.
        choice_wait_s: Longest wait for the SLM's choice, in seconds; the question is answered without it then.
    """

    dense_weight: float = 0.5
    gap: float = 0.35
    share: float = 0.20
    min_episodes: int = 3
    min_memories: int = 40
    max_episodes: int = 16
    max_candidates: int = 2000
    net: int = 10
    net_partitions: int = 10
    net_partitions_large: int = 4
    neighbour_weight: float = 0.2
    episode_weight: float = 0.8
    speaker_weight: float = 0.1
    lexical_limit: int = 2000
    lexical_limit_large: int = 300
    large_memories: int = 50_000
    exact_episodes: int = 8_192
    near_episodes: int = 1_024
    default_memories: int = 10
    cluster_limit: int = 32
    recency_weight: float = 0.0
    access_weight: float = 0.0
    half_life_days: float = 30.0
    max_wait_s: float = 10.0
    cache_mib: int = 80
    archived_cosine: float = 0.5
    answer_relevance: float = 0.2
    choice_clusters: int = 5
    choice_bonus: float = 0.3
    choice_rank_bonus: float = 0.2
    choice_wait_s: float = 2.0
