"""Agentic routing: the SLM moves episodes as far as it is trusted, is asked again after absence, spoils nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from clag_server.memory.cluster_service import EditOptions, ProfileChange
from clag_server.models.api import ChoiceOption
from clag_server.models.scripted import Script
from clag_server.types.change import HistoryCause
from clag_server.types.competence import FULL_WEIGHT, TrustPolicy
from clag_server.types.memory import DecidedBy, FallbackCause
from clag_server.types.routing import Strategy
from tests.catalog.consistency import assert_file_consistent
from tests.memory.routing_support import (
    BETWEEN,
    TOPICS,
    all_memories,
    calls,
    decision_of,
    ingest,
    prefers,
    routed,
    running,
    session,
    topics,
    until_map,
)
from tests.memory.system import NAMESPACE, get
from tests.memory.test_placing import assert_consistent


async def test_the_slms_word_takes_an_episode_to_another_cluster_with_history_and_the_whole_decision(
    tmp_path: Path,
) -> None:
    script = Script()
    async with running(tmp_path, script) as system:
        cluster = await topics(system)
        script.choose = prefers("music")
        await ingest(system, session("new", "hums a tune at the charger", BETWEEN), stream="new")
        await routed(system)
        memories = await all_memories(system)
        state = (await system.registry.pipeline(NAMESPACE, create=False)).state
        history = await state.catalog.memory_history(state.ns, "new-0", before=None, limit=10)
        outcomes = state.counters.snapshot()
        assert_consistent(state.map)
    for n in range(3):
        memory = memories[f"new-{n}"]
        assert memory.cluster == cluster["music"]
        decision = memory.routing
        assert decision is not None
        assert decision.decided_by is DecidedBy.SLM
        assert decision.slm_weight == FULL_WEIGHT
        assert decision.candidates[0].cluster == decision.vote == cluster["music"]
        assert all(c.channel is not None for c in decision.candidates)
        assert f"from c{cluster['battery']} to c{cluster['music']}" in decision.reason
        assert not decision.provisional
    moved = [entry for entry in history.entries if entry.cause is HistoryCause.ROUTING]
    assert moved[0].cluster == cluster["music"]
    assert str(cluster["battery"]) in moved[0].changes[0].old
    assert outcomes["slm_moved"] == 1
    assert_file_consistent(tmp_path / "catalog.db")


@pytest.mark.parametrize(
    ("organize", "cause"),
    [
        ({"trust": TrustPolicy.NONE}, FallbackCause.NOT_TRUSTED),
        ({"trust": TrustPolicy.PROBE}, FallbackCause.NOT_TRUSTED),
        ({"strategy": Strategy.COSINE}, FallbackCause.DISABLED),
    ],
)
async def test_an_slm_whose_word_has_no_weight_is_not_asked_and_the_decision_says_why(
    tmp_path: Path, organize: dict[str, object], cause: FallbackCause
) -> None:
    script = Script(choose=prefers("music"))
    async with running(tmp_path, script, **organize) as system:
        cluster = await topics(system)
        await ingest(system, session("new", "hums a tune at the charger", BETWEEN), stream="new")
        await routed(system)
        memory = await get(system, "new-0")
        outcomes = (await system.stats(NAMESPACE)).outcomes
    assert calls(script) == 0
    assert memory.cluster == cluster["battery"]
    decision = decision_of(memory)
    assert (decision.decided_by, decision.fallback, decision.slm_weight) == (DecidedBy.VECTOR, cause, 0.0)
    assert outcomes["vote_fallbacks"] == outcomes["slm_votes"] == 0


@pytest.mark.parametrize("behaviour", ["nan", "short", "refuse"])
async def test_an_unusable_answer_never_founds_or_changes_a_cluster(tmp_path: Path, behaviour: str) -> None:
    script = Script(choose=behaviour)
    async with running(tmp_path, script) as system:
        cluster = await topics(system)
        for n in range(6):
            await ingest(system, session(f"new-{n}", "hums at the charger", BETWEEN), stream=f"new-{n}")
        await routed(system)
        memories = await all_memories(system)
        state = (await system.registry.pipeline(NAMESPACE, create=False)).state
        counted = state.counters.snapshot()
        assert set(state.map.clusters) == set(cluster.values())
    decisions = [decision_of(m) for i, m in memories.items() if i.startswith("new")]
    expected = FallbackCause.INPUT_REFUSED if behaviour == "refuse" else FallbackCause.INVALID_OUTPUT
    assert {d.fallback for d in decisions} == {expected}
    assert {d.decided_by for d in decisions} == {DecidedBy.VECTOR}
    assert counted["vote_fallbacks"] >= 6
    assert counted["slm_votes"] == counted["slm_moved"] == 0


def at_random(seed: int) -> object:
    dice = random.Random(seed)  # noqa: S311

    def scores(_: str, options: Sequence[ChoiceOption]) -> Sequence[float]:
        return [-100.0 * dice.random() for _ in options]

    return scores


@pytest.mark.parametrize("choose", ["first", "last", at_random(1), at_random(2)])
async def test_a_bad_slm_with_full_weight_moves_episodes_among_the_clusters_there_are_and_loses_none(
    tmp_path: Path, choose: object
) -> None:
    script = Script()
    async with running(tmp_path, script) as system:
        cluster = await topics(system)
        script.choose = choose  # type: ignore[assignment]
        items = [
            item
            for n in range(20)
            for item in session(f"new-{n}", "hums at the charger", {n % 3: 0.8, (n + 1) % 3: 0.6})
        ]
        await ingest(system, items, stream="new")
        await routed(system)
        memories = await all_memories(system)
        state = (await system.registry.pipeline(NAMESPACE, create=False)).state
        assert_consistent(state.map)
        moved = state.counters.snapshot()["slm_moved"]
    new = [m for i, m in memories.items() if i.startswith("new")]
    assert len(new) == 60
    assert {m.cluster for m in new} <= set(cluster.values())
    assert {decision_of(m).decided_by for m in new} == {DecidedBy.SLM}
    # The candidates come nearest first, so one that always takes the first only says what the vectors say.
    assert (moved > 0) is (choose != "first")
    assert_file_consistent(tmp_path / "catalog.db")


async def test_an_oracle_puts_together_what_is_used_together(tmp_path: Path) -> None:
    script = Script()
    async with running(tmp_path, script) as system:
        cluster = await topics(system)

        def oracle(text: str, options: Sequence[ChoiceOption]) -> Sequence[float]:
            topic = next(topic for topic in TOPICS if f"for the {topic}" in text)
            return [-1.0 if topic in option.head else -50.0 for option in options]

        script.choose = oracle
        items = [
            item
            for n, topic in enumerate([*TOPICS] * 4)
            for item in session(f"{topic}-new-{n}", f"for the {topic}", {n % 3: 0.6, (n + 1) % 3: 0.5, 3: 0.6})
        ]
        await ingest(system, items, stream="new")
        await routed(system)
        memories = await all_memories(system)
    for topic in TOPICS:
        assert {m.cluster for i, m in memories.items() if i.startswith(f"{topic}-new")} == {cluster[topic]}


async def test_a_founded_cluster_is_given_up_where_the_slm_finds_an_existing_one_likelier(tmp_path: Path) -> None:
    script = Script()
    async with running(tmp_path, script, cluster_cosine=0.6) as system:
        cluster = await topics(system)
        script.choose = prefers("music")
        await ingest(system, session("new", "hums at the charger", {1: 0.5, 7: 0.85}), stream="new")
        await routed(system)
        memory = await get(system, "new-0")
        state = (await system.registry.pipeline(NAMESPACE, create=False)).state
        known = set(state.map.clusters)
    decision = decision_of(memory)
    assert (memory.cluster, decision.founded) == (cluster["music"], False)
    assert known == set(cluster.values())
    assert state.counters.snapshot()["clusters_born"] > len(known)
    assert_file_consistent(tmp_path / "catalog.db")


async def test_a_founded_cluster_stays_where_other_notes_of_the_agent_are_as_likely(tmp_path: Path) -> None:
    def none_of_these(_: str, options: Sequence[ChoiceOption]) -> Sequence[float]:
        return [-1.0 if option.key.endswith("/none") else -50.0 for option in options]

    script = Script()
    async with running(tmp_path, script, cluster_cosine=0.6) as system:
        cluster = await topics(system)
        script.choose = none_of_these
        await ingest(system, session("new", "hums at the charger", {1: 0.5, 7: 0.85}), stream="new")
        await routed(system)
        memory = await get(system, "new-0")
    decision = decision_of(memory)
    assert memory.cluster not in cluster.values()
    assert (decision.decided_by, decision.founded) == (DecidedBy.SLM, True)


async def test_beyond_its_reach_the_slm_is_not_asked_about_what_founded_a_cluster(tmp_path: Path) -> None:
    script = Script()
    async with running(tmp_path, script, cluster_cosine=0.6, pull_cosine=0.59) as system:
        await topics(system)
        script.choose = prefers("music")
        script.calls.clear()
        await ingest(system, session("new", "hums at the charger", {1: 0.5, 7: 0.85}), stream="new")
        await routed(system)
        decision = decision_of(await get(system, "new-0"))
    assert calls(script) == 0
    assert (decision.decided_by, decision.founded) == (DecidedBy.VECTOR, True)
    assert decision.fallback is FallbackCause.NONE


async def test_an_episode_does_not_speak_for_its_own_cluster(tmp_path: Path) -> None:
    script = Script()
    async with running(tmp_path, script) as system:
        await topics(system, sessions=1)
        script.calls.clear()
        await ingest(system, session("new", "zither in the hall", TOPICS["music"], size=9), stream="new")
        await until_map(system, lambda state: not state.map.open_episodes)
        await routed(system)
        heads = [option.head for call in script.calls if call.kind == "choose" for option in call.options]
    assert heads
    assert not any("zither" in head for head in heads)


async def test_nothing_is_taken_from_a_pinned_cluster_or_to_an_archived_one(tmp_path: Path) -> None:
    script = Script()
    async with running(tmp_path, script) as system:
        cluster = await topics(system)
        pinned = ProfileChange(frozenset(), pinned=True)
        await system.cluster_edits.update(NAMESPACE, cluster["battery"], pinned, EditOptions())
        await system.cluster_edits.archive(NAMESPACE, cluster["garden"], True, EditOptions())
        script.choose = prefers("music")
        await ingest(system, session("new", "hums at the charger", BETWEEN), stream="new")
        script.choose = prefers("garden")
        await ingest(system, session("other", "hums in the hall", {1: 0.75, 2: 0.66}), stream="other")
        await routed(system)
        memories = await all_memories(system)
    assert memories["new-0"].cluster == cluster["battery"]
    assert memories["other-0"].cluster != cluster["garden"]


async def test_a_place_that_a_client_chose_meanwhile_stands(tmp_path: Path) -> None:
    script = Script()
    async with running(tmp_path, script) as system:
        cluster = await topics(system)
        script.choose = "unavailable"
        await ingest(system, session("new", "hums at the charger", BETWEEN), stream="new")
        await until_map(system, lambda state: state.counters.snapshot()["deferred"] == 1)
        ids = [f"new-{n}" for n in range(3)]
        for target in ("garden", "battery"):  # away and back: the place is the old one, the choice is the client's
            await system.cluster_edits.move(NAMESPACE, cluster[target], ids, EditOptions())
        script.choose = prefers("music")
        await routed(system)
        memory = await get(system, "new-0")
    assert (memory.cluster, decision_of(memory).decided_by) == (cluster["battery"], DecidedBy.MANUAL)


async def test_the_agents_purpose_and_what_it_was_doing_are_part_of_what_the_slm_weighs(tmp_path: Path) -> None:
    script = Script()
    async with running(tmp_path, script) as system:
        await topics(system)
        await system.whole.update(NAMESPACE, lambda old: replace(old, purpose="keeps a house comfortable"), etag="")
        script.calls.clear()
        items = [replace(item, task="check the rooms") for item in session("new", "is always cold", BETWEEN)]
        await ingest(system, items, stream="new")
        await routed(system)
        asked = [call for call in script.calls if call.kind == "choose"]
    assert asked[0].text.startswith("[task check the rooms] is always cold")
    assert all(o.head.startswith("The agent: keeps a house comfortable\n") for o in asked[0].options)
