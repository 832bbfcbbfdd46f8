"""What the SLM could not decide is decided later: after its absence, a restart, a probe; never at others' cost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from clag_server.memory import vote_stage
from clag_server.models.scripted import Script
from clag_server.types.competence import FULL_WEIGHT, TrustPolicy
from clag_server.types.memory import DecidedBy, FallbackCause
from tests.catalog.consistency import assert_file_consistent
from tests.memory.routing_support import (
    BETWEEN,
    TOPICS,
    all_memories,
    calls,
    decision_of,
    ingest,
    prefers,
    report,
    routed,
    running,
    session,
    topics,
    until_map,
)
from tests.memory.system import NAMESPACE, get


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try an SLM that was away again at once."""
    monkeypatch.setattr(vote_stage, "_RETRY_S", 0.01)
    monkeypatch.setattr(vote_stage, "_MAX_RETRY_S", 0.05)


async def test_decisions_made_before_the_probe_ended_stand_and_those_after_it_are_asked_about(
    tmp_path: Path,
) -> None:
    script = Script(choose=prefers("music"))
    async with running(tmp_path, script, trust=TrustPolicy.PROBE) as system:
        cluster = await topics(system)
        await ingest(system, session("before", "hums at the charger", BETWEEN), stream="before")
        await routed(system)
        system.competence.learned(report(2.0))
        await ingest(system, session("after", "hums at the charger", BETWEEN), stream="after")
        await routed(system)
        memories = await all_memories(system)
    assert memories["before-0"].cluster == cluster["battery"]
    assert decision_of(memories["before-0"]).fallback is FallbackCause.NOT_TRUSTED
    assert memories["after-0"].cluster == cluster["music"]
    assert decision_of(memories["after-0"]).slm_weight == 2.0


async def test_all_that_waits_for_an_slm_that_is_away_is_deferred_and_decided_when_it_is_back(
    tmp_path: Path,
) -> None:
    script = Script()
    async with running(tmp_path, script, vote_batch=4) as system:
        cluster = await topics(system)
        script.choose = "unavailable"
        for n in range(9):
            await ingest(system, session(f"new-{n}", "hums at the charger", BETWEEN), stream=f"new-{n}")
        await until_map(system, lambda state: not state.map.open_episodes)
        async with asyncio.timeout(30):
            while True:
                waiting = [m for i, m in (await all_memories(system)).items() if i.startswith("new")]
                if all(decision_of(m).decided_by is DecidedBy.DEFERRED for m in waiting):
                    break
        assert {m.cluster for m in waiting} == {cluster["battery"]}
        assert all(decision_of(m).provisional for m in waiting)
        assert {decision_of(m).fallback for m in waiting} == {FallbackCause.UNAVAILABLE}
        await until_map(system, lambda state: state.counters.snapshot()["deferred"] == 9)
        script.choose = prefers("music")
        await routed(system)
        memories = await all_memories(system)
        outcomes = (await system.stats(NAMESPACE)).outcomes
    assert {m.cluster for i, m in memories.items() if i.startswith("new")} == {cluster["music"]}
    assert outcomes["deferred"] == 9
    assert outcomes["slm_moved"] == 9


async def test_what_waited_for_the_slm_is_decided_after_a_restart_without_anyone_asking_for_the_namespace(
    tmp_path: Path,
) -> None:
    script = Script()
    async with running(tmp_path, script) as system:
        cluster = await topics(system)
        script.choose = "unavailable"
        await ingest(system, session("new", "hums at the charger", BETWEEN), stream="new")
        await until_map(system, lambda state: state.counters.snapshot()["deferred"] == 1)
    script.choose = prefers("music")
    async with running(tmp_path, script) as system:
        async with asyncio.timeout(30):
            while system.registry.opened(NAMESPACE) is None:  # noqa: ASYNC110 - it opens by itself
                await asyncio.sleep(0.005)
        await routed(system)
        memory = await get(system, "new-0")
    assert (memory.cluster, decision_of(memory).decided_by) == (cluster["music"], DecidedBy.SLM)
    assert_file_consistent(tmp_path / "catalog.db")


@pytest.mark.parametrize("weight", [FULL_WEIGHT, 0.0])
async def test_what_was_deferred_before_a_restart_waits_for_the_probe_and_is_decided_by_its_outcome(
    tmp_path: Path, weight: float
) -> None:
    script = Script()
    async with running(tmp_path, script) as system:
        cluster = await topics(system)
        script.choose = "unavailable"
        await ingest(system, session("new", "hums at the charger", BETWEEN), stream="new")
        await until_map(system, lambda state: state.counters.snapshot()["deferred"] == 1)
    script.choose = prefers("music")
    script.calls.clear()
    async with running(tmp_path, script, trust=TrustPolicy.PROBE) as system:
        await ingest(system, session("late", "about music", TOPICS["music"]), stream="late")
        await until_map(system, lambda state: not state.map.open_episodes)
        assert decision_of(await get(system, "new-0")).awaits_slm
        assert calls(script) == 0
        system.competence.learned(report(weight))
        await routed(system)
        memory = await get(system, "new-0")
    decision = decision_of(memory)
    if weight:
        assert (memory.cluster, decision.decided_by) == (cluster["music"], DecidedBy.SLM)
    else:
        assert (memory.cluster, decision.decided_by) == (cluster["battery"], DecidedBy.VECTOR)
        assert decision.fallback is FallbackCause.NOT_TRUSTED
        assert not decision.provisional


async def test_a_memory_that_ends_the_model_keeps_the_vectors_place_and_holds_up_no_other(tmp_path: Path) -> None:
    script = Script()
    async with running(tmp_path, script) as system:
        cluster = await topics(system)
        script.choose, script.poison = prefers("music"), "deadly"
        items = [
            item
            for name, text in (("a", "hums at the charger"), ("b", "deadly hum"), ("c", "hums at the dock"))
            for item in session(name, text, BETWEEN)
        ]
        await ingest(system, items, stream="new")
        await routed(system)
        memories = await all_memories(system)
    assert memories["a-0"].cluster == memories["c-0"].cluster == cluster["music"]
    poison = decision_of(memories["b-0"])
    assert memories["b-0"].cluster == cluster["battery"]
    assert (poison.decided_by, poison.fallback) == (DecidedBy.VECTOR, FallbackCause.UNAVAILABLE)
    assert not poison.provisional
