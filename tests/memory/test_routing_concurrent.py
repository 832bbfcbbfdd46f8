"""Votes on many episodes at once, while clients delete, move, merge and split: nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from clag_server.memory import vote_stage
from clag_server.memory.cluster_service import EditOptions
from clag_server.memory.system import MemorySystem
from clag_server.models.api import ChoiceOption, ChoiceResult, ModelUnavailableError, Priority
from clag_server.models.scripted import Script, ScriptedSlm
from clag_server.types.competence import TrustPolicy
from clag_server.types.errors import ClagError
from clag_server.types.memory import DecidedBy, NewMemory
from tests.catalog.consistency import assert_file_consistent
from tests.memory.routing_support import DIM, all_memories, ingest, routed, session, until_map
from tests.memory.system import NAMESPACE, system_on
from tests.memory.test_placing import assert_consistent

EPISODES = 200


class Slow(ScriptedSlm):
    """An SLM that lets others have their turn before it answers, and counts how many calls are in flight."""

    def __init__(self, script: Script, seed: int) -> None:
        super().__init__(lambda: script)
        self.dice = random.Random(seed)  # noqa: S311
        self.in_flight = 0
        self.most = 0

    async def choose(
        self,
        text: str,
        options: Sequence[ChoiceOption],
        *,
        priority: Priority,
        deadline_s: float | None = None,
    ) -> ChoiceResult:
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            for _ in range(self.dice.randrange(20)):
                await asyncio.sleep(0)
            return await super().choose(text, options, priority=priority, deadline_s=deadline_s)
        finally:
            self.in_flight -= 1


def sessions(count: int) -> list[list[str]]:
    return [[f"s{n}-{m}" for m in range(3)] for n in range(count)]


async def meddle(system: MemorySystem, deleted: set[str], moved: set[str], dice: random.Random) -> None:
    """Delete, move, merge and split what there is, as long as votes are going on."""
    state = (await system.registry.pipeline(NAMESPACE, create=False)).state
    merges = 2  # each decides the places of a whole cluster by hand; with many, little is left to vote on
    while state.map.undecided:
        clusters = sorted(state.map.clusters)
        first, second = dice.choice(clusters), dice.choice(clusters)
        victim = f"s{dice.randrange(EPISODES)}-{dice.randrange(3)}"
        whole = [f"{victim.split('-', 1)[0]}-{m}" for m in range(3)]
        with contextlib.suppress(ClagError):
            match dice.randrange(6):
                case 0 | 1:
                    await system.edits.delete(NAMESPACE, victim, etag="")
                    deleted.add(victim)
                case 2:
                    there = [one for one in whole if one not in deleted]
                    edited = await system.cluster_edits.move(NAMESPACE, first, there, EditOptions())
                    # Those that are there already are not moved.
                    moved.update(there if edited.moved == len(there) else ())
                case 3 if first != second and merges:
                    merges -= 1
                    await system.cluster_edits.merge(NAMESPACE, first, [second], EditOptions())
                case 4:
                    await system.cluster_edits.split_into(NAMESPACE, first, 2, EditOptions())
                case _:
                    await asyncio.sleep(0)


async def test_two_hundred_votes_and_the_edits_of_clients_meanwhile_lose_nothing(tmp_path: Path) -> None:
    script = Script(choose="unavailable")
    dice = random.Random(5)  # noqa: S311
    async with system_on(tmp_path, script=script, trust=TrustPolicy.FULL, cluster_cosine=0.2) as system:
        pipeline = await system.registry.pipeline(NAMESPACE, create=True)
        await ingest(system, _many(), stream="many")
        await until_map(system, lambda state: not state.map.open_episodes)
        waiting = len(pipeline.state.map.undecided)
        slow = Slow(script, seed=3)
        pipeline._votes._slm = slow
        script.choose = lambda _, options: [-100.0 * dice.random() for _ in options]
        deleted: set[str] = set()
        moved: set[str] = set()
        await asyncio.gather(meddle(system, deleted, moved, dice), routed(system))
        memories = await all_memories(system)
        assert_consistent(pipeline.state.map)
        counted = pipeline.state.counters.snapshot()
    assert waiting > EPISODES / 2
    assert 1 < slow.most <= 16
    assert set(memories) == {one for names in sessions(EPISODES) for one in names} - deleted
    # What a client chose stands, whatever the SLM said later.
    assert all(m.routing and m.routing.decided_by is DecidedBy.MANUAL for i, m in memories.items() if i in moved)
    assert not any(m.routing and m.routing.awaits_slm for m in memories.values())
    assert moved
    assert counted["slm_votes"] > 2 * 16  # more than two waves
    assert_file_consistent(tmp_path / "catalog.db")


async def test_the_decisions_of_a_session_are_recorded_in_the_order_of_its_episodes(tmp_path: Path) -> None:
    script = Script(choose="unavailable")
    async with system_on(
        tmp_path, script=script, trust=TrustPolicy.FULL, cluster_cosine=0.2, episode_max=2
    ) as system:
        pipeline = await system.registry.pipeline(NAMESPACE, create=True)
        for n in range(4):
            await ingest(system, session(f"seed{n}", f"topic {n}", {n: 1.0}), stream=f"seed{n}")
        items = session("long", "a walk in the park", {0: 0.7, 1: 0.6}, size=80)
        await ingest(system, items, stream="long")
        await until_map(system, lambda state: not state.map.open_episodes)
        pipeline._votes._slm = Slow(script, seed=1)
        script.choose = "last"
        await routed(system)
        page, _ = await system.list_memories(NAMESPACE, where=None, after=0, limit=1000, fresh_revision=0)
    long = [m for m in page.memories if m.session_id == "long"]
    assert len({m.episode for m in long}) == 40
    by_slm = [m.routing.time_ns for m in long if m.routing and m.routing.decided_by is DecidedBy.SLM]
    assert len(by_slm) == 80
    assert by_slm == sorted(by_slm)


async def test_an_slm_that_fails_in_the_middle_of_a_wave_is_asked_again_about_those_it_did_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vote_stage, "_RETRY_S", 0.01)
    monkeypatch.setattr(vote_stage, "_MAX_RETRY_S", 0.05)
    asked = 0

    def flaky(_: str, options: Sequence[ChoiceOption]) -> Sequence[float]:
        nonlocal asked
        asked += 1
        if asked % 7 == 3:
            raise ModelUnavailableError("the model process ended (scripted)", 0.0)
        return [-1.0 - n for n in range(len(options))]

    script = Script(choose=flaky)
    async with system_on(tmp_path, script=script, trust=TrustPolicy.FULL, cluster_cosine=0.2) as system:
        await ingest(system, _many(60), stream="many")
        await routed(system)
        memories = await all_memories(system)
        outcomes = (await system.stats(NAMESPACE)).outcomes
    assert outcomes["deferred"] > 0
    decided = [m.routing for m in memories.values() if m.routing and len(m.routing.candidates) > 1]
    assert {d.decided_by for d in decided if not d.founded} == {DecidedBy.SLM}


def _many(count: int = EPISODES) -> list[NewMemory]:
    dice = random.Random(count)  # noqa: S311
    items: list[NewMemory] = []
    for n in range(count):
        first, second = dice.sample(range(8), 2)
        items += session(f"s{n}", f"note {n} of topic {first}", {first: 0.8, second: 0.6, 8 + n % (DIM - 8): 0.3})
    return items
