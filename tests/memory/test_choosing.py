"""The SLM's choice among a question's best clusters: asked as far as it is trusted, favoured, never a filter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from clag_server.catalog.api import EpisodeMembers
from clag_server.memory.choosing import UNTRUSTED_WEIGHT, ClusterChooser, rank_bonus
from clag_server.memory.cluster_choice import ClusterChoice, WeighedCluster
from clag_server.memory.cluster_map import ClusterMap
from clag_server.memory.config import RetrieveConfig
from clag_server.memory.selecting import EpisodeScores, best_clusters, favour, pick_episodes, score_episodes
from clag_server.memory.system import MemorySystem
from clag_server.memory.time_left import StepDurations, TimeLeft
from clag_server.models.api import ChoiceOption, Priority
from clag_server.models.scripted import Script, ScriptedSlm
from clag_server.types.cluster import Episode
from clag_server.types.competence import FULL_WEIGHT, ProbeReport, Skill, SkillResult, TrustPolicy
from clag_server.types.memory import FallbackCause
from clag_server.types.retrieval import (
    ClusterSelection,
    DegradationKind,
    MemoryHits,
    RetrieveDone,
    RetrieveMode,
    RetrieveQuery,
    RetrieveStage,
    SlmUse,
)
from tests.memory.routing_support import prefers, running, topics, towards
from tests.memory.system import NAMESPACE

BOTH = towards({0: 0.75, 1: 0.66})
"""A question nearer to the battery topic than to music."""


async def asked(system: MemorySystem, **fields: object) -> list[RetrieveStage]:
    """The stages of a question that lies between two topics."""
    query = RetrieveQuery(NAMESPACE, "which one hums", vector=BOTH, **fields)  # type: ignore[arg-type]
    return [stage async for stage in system.retrieve(query)]


def selection(stages: Sequence[RetrieveStage]) -> ClusterSelection:
    assert isinstance(stages[0], ClusterSelection)
    return stages[0]


def done(stages: Sequence[RetrieveStage]) -> RetrieveDone:
    assert isinstance(stages[-1], RetrieveDone)
    return stages[-1]


def first_hit(stages: Sequence[RetrieveStage]) -> str:
    assert isinstance(stages[1], MemoryHits)
    return stages[1].hits[0].memory.session_id


def best_of(stages: Sequence[RetrieveStage], cluster: int) -> float:
    """The best score of a cluster's memories."""
    assert isinstance(stages[1], MemoryHits)
    return max(hit.score for hit in stages[1].hits if hit.memory.cluster == cluster)


def questions_to(script: Script) -> list[str]:
    """What the SLM was asked while somebody waited."""
    return [call.text for call in script.calls if call.kind == "choose" and call.priority is Priority.INTERACTIVE]


def learned(system: MemorySystem, weight: float) -> None:
    result = SkillResult(Skill.SELECTION, 60, 0.9, 0.8, 0.95, 0.7, 1.0, 0.0, weight)
    system.competence.learned(ProbeReport("scripted-slm", "1", (result,), 10.0, 1))


async def test_the_chosen_cluster_comes_first_and_the_trace_says_who_chose_it(tmp_path: Path) -> None:
    script = Script()
    async with running(tmp_path, script) as system:
        clusters = await topics(system)
        before = await asked(system, slm_use=SlmUse.NEVER)
        assert selection(before).candidates[0].cluster == clusters["battery"]
        script.choose = prefers("music")
        stages = await asked(system)
        told = selection(stages)
        assert told.fallback is FallbackCause.NONE
        assert told.candidates[0].cluster == clusters["music"]
        assert told.candidates[0].reason.startswith("chosen by the SLM")
        votes = {one.cluster: one.slm_vote for one in told.candidates}
        assert votes.keys() == set(clusters.values())
        assert votes[clusters["music"]] == max(vote for vote in votes.values() if vote is not None)
        hits = stages[1]
        assert isinstance(hits, MemoryHits)
        gained = {hit.memory.cluster: hit.parts.choice for hit in hits.hits}
        assert best_of(stages, clusters["music"]) > best_of(before, clusters["music"])
        assert gained[clusters["music"]] == RetrieveConfig().choice_rank_bonus
        assert gained[clusters["battery"]] == 0
        assert done(stages).degraded == ()


async def test_nothing_is_left_out_for_the_choice(tmp_path: Path) -> None:
    script = Script()
    async with running(tmp_path, script) as system:
        await topics(system)
        before = done(await asked(system, slm_use=SlmUse.NEVER)).space
        script.choose = prefers("garden")
        assert done(await asked(system)).space.ranked == before.ranked


async def test_the_slm_is_shown_the_question_and_the_clusters_as_in_routing(tmp_path: Path) -> None:
    script = Script()
    async with running(tmp_path, script) as system:
        clusters = await topics(system)
        await asked(system, task_hint="packing")
        call = script.calls[-1]
        assert call.text == "[task packing] which one hums"
        assert {option.key.rsplit("/", 1)[1] for option in call.options} == {f"c{n}" for n in clusters.values()}
        assert all("A note about this topic: about" in option.head for option in call.options)


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"slm_use": SlmUse.NEVER}, FallbackCause.DISABLED),
        ({"mode": RetrieveMode.GLOBAL}, FallbackCause.DISABLED),
        ({}, FallbackCause.NOT_TRUSTED),
    ],
)
async def test_a_question_that_may_not_ask_the_slm_does_not(
    tmp_path: Path, fields: dict[str, object], cause: FallbackCause
) -> None:
    script = Script()
    async with running(tmp_path, script, trust=TrustPolicy.PROBE) as system:
        await topics(system)
        stages = await asked(system, **fields)
        assert selection(stages).fallback is cause
        assert questions_to(script) == []
        assert done(stages).degraded == ()


async def test_what_the_probe_says_of_selection_holds_at_once(tmp_path: Path) -> None:
    script = Script(choose="last")
    async with running(tmp_path, script, trust=TrustPolicy.PROBE) as system:
        await topics(system)
        learned(system, 0.5)
        assert any(one.slm_vote for one in selection(await asked(system)).candidates)
        learned(system, 0.0)
        assert selection(await asked(system)).fallback is FallbackCause.NOT_TRUSTED


async def test_an_untrusted_slm_that_a_question_insists_on_weighs_as_much_as_the_episodes(tmp_path: Path) -> None:
    script = Script(choose=prefers("music"))
    async with running(tmp_path, script, trust=TrustPolicy.NONE) as system:
        await topics(system)
        choice = await chosen(system, script)
        assert choice.weight == UNTRUSTED_WEIGHT
        assert choice.chosen == choice.weighed[0].cluster
        assert [one.combined for one in choice.weighed] == sorted(
            (one.combined for one in choice.weighed), reverse=True
        )


@pytest.mark.parametrize(
    ("choose", "cause", "kind"),
    [
        ("unavailable", FallbackCause.UNAVAILABLE, DegradationKind.SLM_UNAVAILABLE),
        ("nan", FallbackCause.INVALID_OUTPUT, DegradationKind.SLM_UNAVAILABLE),
        ("short", FallbackCause.INVALID_OUTPUT, DegradationKind.SLM_UNAVAILABLE),
        ("refuse", FallbackCause.INPUT_REFUSED, DegradationKind.SLM_UNAVAILABLE),
    ],
)
async def test_a_failing_slm_degrades_the_answer_and_changes_nothing_in_it(
    tmp_path: Path, choose: str, cause: FallbackCause, kind: DegradationKind
) -> None:
    script = Script()
    async with running(tmp_path, script) as system:
        await topics(system)
        before = await asked(system, slm_use=SlmUse.NEVER)
        counted = (await system.stats(NAMESPACE)).fallbacks.get(cause, 0)
        script.choose = choose
        stages = await asked(system)
        assert selection(stages).fallback is cause
        assert [one.kind for one in done(stages).degraded] == [kind]
        assert hits_of(stages) == hits_of(before)
        stats = await system.stats(NAMESPACE)
        assert stats.outcomes["selection_fallbacks"] == 1
        assert stats.fallbacks[cause] == counted + 1


async def test_a_slow_slm_is_not_waited_for(tmp_path: Path) -> None:
    script = Script()
    async with running(tmp_path, script) as system:
        await topics(system)
        script.choose = "hang"
        choice = await chosen(system, script, wait_s=0.6)
        assert len(questions_to(script)) == 1
        assert choice.chosen is None
        assert choice.fallback is FallbackCause.TIMEOUT
        assert choice.degradation is not None
        assert choice.degradation.kind is DegradationKind.SLM_SKIPPED


async def test_a_slow_slm_costs_its_wait_once_in_a_while_and_not_with_every_question(tmp_path: Path) -> None:
    script = Script()
    async with running(tmp_path, script) as system:
        await topics(system)
        script.choose = "hang"
        assert (await chosen(system, script, wait_s=0.6)).fallback is FallbackCause.TIMEOUT
        script.choose = "overlap"  # it is fast again
        later = [await chosen(system, script, wait_s=0.6) for _ in range(20)]
        assert later[0].fallback is FallbackCause.TIMEOUT
        assert later[-1].chosen is not None
        assert len(questions_to(script)) == 1 + sum(one.chosen is not None for one in later)


async def test_a_question_without_time_for_the_slm_does_not_ask_it(tmp_path: Path) -> None:
    script = Script()
    async with running(tmp_path, script) as system:
        await topics(system)
        choice = await chosen(system, script, deadline_s=0.1)
        assert questions_to(script) == []
        assert choice.degradation is not None
        assert choice.degradation.kind is DegradationKind.SLM_SKIPPED


async def test_a_question_without_words_is_no_question_for_the_slm(tmp_path: Path) -> None:
    script = Script()
    async with running(tmp_path, script) as system:
        await topics(system)
        stages = [one async for one in system.retrieve(RetrieveQuery(NAMESPACE, "", vector=BOTH))]
        assert questions_to(script) == []
        assert first_hit(stages).startswith("battery")


async def test_episodes_that_go_while_the_slm_is_asked_are_not_picked(tmp_path: Path) -> None:
    script = Script()
    async with running(tmp_path, script) as system:
        clusters = await topics(system)
        cluster_map = (await system.registry.pipeline(NAMESPACE, create=False)).state.map

        def meanwhile(_: str, options: Sequence[ChoiceOption]) -> Sequence[float]:
            for number in tuple(cluster_map.cluster_episodes[clusters["battery"]]):
                cluster_map.remove_episode(number)
            cluster_map.remove_cluster(clusters["battery"])
            return [0.0] * len(options)

        script.choose = meanwhile
        told = selection(await asked(system))
        assert clusters["battery"] not in {one.cluster for one in told.candidates}


async def chosen(
    system: MemorySystem, script: Script, *, wait_s: float = 2.0, deadline_s: float | None = None
) -> ClusterChoice:
    """What the SLM says of a question that insists on it, about the namespace's episodes as they are."""
    state = (await system.registry.pipeline(NAMESPACE, create=False)).state
    numbers, cosines = state.map.episode_centroids.scores(BOTH)
    groups, sizes = state.map.episode_centroids.groups_and_sizes()
    scored = score_episodes(
        numbers, groups, sizes, cosines.astype(np.float64), np.zeros(len(numbers)), dense_weight=0.5
    )
    chooser = ClusterChooser(ScriptedSlm(lambda: script), state, RetrieveConfig(choice_wait_s=wait_s))
    query = RetrieveQuery(NAMESPACE, "which one hums", slm_use=SlmUse.ALWAYS)
    return await chooser.choose(query, scored, TimeLeft(deadline_s, StepDurations(), clock=lambda: 0.0))


def hits_of(stages: Sequence[RetrieveStage]) -> list[tuple[str, float]]:
    assert isinstance(stages[1], MemoryHits)
    return [(hit.memory.memory_id, hit.score) for hit in stages[1].hits]


def scored_episodes(scores: Sequence[float], clusters: Sequence[int], *, size: int = 20) -> EpisodeScores:
    n = len(scores)
    return EpisodeScores(
        np.arange(1, n + 1, dtype=np.int64),
        np.array(clusters, dtype=np.int64),
        np.full(n, size, dtype=np.int64),
        np.array(scores, dtype=np.float64),
        np.zeros(n),
        np.array(scores, dtype=np.float64),
        np.zeros(n),
    )


def choice_of(cluster: int, *, confirms: bool = False) -> ClusterChoice:
    other = WeighedCluster(99, 0.4 if confirms else 0.6, -1.0, -2.0)
    return ClusterChoice((WeighedCluster(cluster, 0.5, 1.0, 2.0), other), weight=FULL_WEIGHT)


def test_the_best_clusters_are_those_with_the_best_episodes() -> None:
    scored = scored_episodes([0.2, 0.9, 0.8, 0.9, 0.1], [3, 2, 2, 1, 4])
    assert best_clusters(scored, 3) == [(1, 0.9), (2, 0.9), (3, 0.2)]
    assert len(best_clusters(scored, 10)) == 4


def test_the_bonus_lifts_the_chosen_clusters_episodes_over_better_ones() -> None:
    config = RetrieveConfig(choice_bonus=0.3, min_memories=0, min_episodes=1, gap=0.05)
    scored = scored_episodes([1.0, 0.8, 0.75, 0.1], [1, 2, 2, 1])
    assert pick_episodes(scored, config, total=100, max_clusters=0).tolist() == [0]
    favoured = favour(scored, choice_of(2), config)
    assert pick_episodes(favoured, config, total=1000, max_clusters=0).tolist() == [1, 2]
    assert favoured.scores.tolist() == scored.scores.tolist()


def test_a_choice_that_the_episodes_make_too_gives_half_the_bonus() -> None:
    scored = scored_episodes([1.0, 0.8], [1, 2])
    config = RetrieveConfig(choice_bonus=0.3)
    assert favour(scored, choice_of(1), config).bonus.tolist() == [0.3, 0.0]
    assert favour(scored, choice_of(1, confirms=True), config).bonus.tolist() == [0.15, 0.0]


def test_without_a_choice_nothing_is_favoured() -> None:
    scored = scored_episodes([1.0, 0.8], [1, 2])
    assert favour(scored, ClusterChoice(fallback=FallbackCause.TIMEOUT), RetrieveConfig()) is scored
    nobody = np.full(2, "", dtype=np.object_)
    members = EpisodeMembers(*(np.array([1, 2], dtype=np.int64),) * 3, np.zeros((2, 4), dtype=np.float32), nobody)
    assert rank_bonus(members, ClusterChoice(), ClusterMap(4, (), ()), RetrieveConfig()) is None


def test_memories_of_the_chosen_cluster_gain_wherever_they_were_found() -> None:
    episodes = [
        Episode(n, "s", cluster, np.ones(4, dtype=np.float32), 1, n, n, open=False, last_time_ns=0)
        for n, cluster in ((1, 7), (2, 8), (3, 7))
    ]
    members = EpisodeMembers(
        np.array([10, 11, 12], dtype=np.int64),
        np.array([3, 2, 1], dtype=np.int64),
        np.zeros(3, dtype=np.int64),
        np.zeros((3, 4), dtype=np.float32),
        np.full(3, "", dtype=np.object_),
    )
    bonus = rank_bonus(members, choice_of(7), ClusterMap(4, episodes, ()), RetrieveConfig(choice_rank_bonus=0.5))
    assert bonus is not None
    assert bonus.tolist() == [0.5, 0.0, 0.5]
