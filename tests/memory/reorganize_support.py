"""Clusters that are wrong, for tests of re-organization: topics told in sessions, then muddled by hand."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from clag_server.memory.cluster_service import EditOptions
from clag_server.memory.reorganizing.service import ReorganizeRequest
from clag_server.memory.system import MemorySystem
from clag_server.types.competence import TrustPolicy
from clag_server.types.ingest import AckLevel
from clag_server.types.operation import Operation
from clag_server.types.routing import Strategy
from tests.memory.builders import new
from tests.memory.system import NAMESPACE, ended

TOPICS = {
    "dock": "charging dock needs another yellow cable soon",
    "gripper": "gripper finger slipped while lifting fragile glass",
    "door": "northern door opens slowly every winter morning",
    "lamp": "corridor lamp flickers whenever elevators start moving",
}

_TIMES = ("today", "yesterday", "tomorrow", "tonight")

SETTINGS: dict[str, Any] = {"cluster_cosine": 0.45, "episode_idle_s": 0.02}
"""To the scripted embedder the date that every text begins with is a third of a short text."""


async def tell(
    system: MemorySystem, topics: Sequence[str] = tuple(TOPICS), *, episodes: int = 4, each: int = 3
) -> dict[str, int]:
    """Store episodes of topics, one session each; returns the cluster of each topic."""
    for topic in topics:
        for number in range(episodes):
            await tell_episode(system, topic, number, each=each)
    await organized(system)
    for topic in topics:  # the first episodes of a namespace may found a cluster of their own each
        homes = {number for number, counts in (await topics_by_cluster(system)).items() if topic in counts}
        target = await home(system, f"{topic}-0-0")
        if len(homes) > 1:
            await merge(system, target, sorted(homes - {target}))
    await organized(system)
    return {topic: await home(system, f"{topic}-0-0") for topic in topics}


async def tell_episode(system: MemorySystem, topic: str, number: int, *, each: int = 3) -> None:
    """Store one episode of a topic, in a session of its own."""
    session = f"{topic}-{number}"
    for i in range(each):
        item = new(f"{TOPICS[topic]} {_TIMES[number % 4]} part {i}", f"{session}-{i}", session_id=session)
        await system.create_memory(NAMESPACE, item, request_id="", level=AckLevel.DURABLE)
    await (await system.registry.pipeline(NAMESPACE, create=False)).end_episode(session, "told")


async def organized(system: MemorySystem) -> None:
    """Wait until nothing awaits evolution or a profile."""
    async with asyncio.timeout(30):
        while True:
            stats = await system.stats(NAMESPACE)
            waiting = sum(n for state, n in stats.rows.by_state.items() if state.name != "EVOLVED")
            if not waiting and not stats.profiles_due:
                return
            await asyncio.sleep(0.005)


async def home(system: MemorySystem, memory_id: str) -> int:
    """The cluster of a memory."""
    memory, _ = await system.get_memory(NAMESPACE, memory_id, embedding=False, fresh_revision=0)
    assert memory.cluster is not None
    return memory.cluster


async def topics_by_cluster(system: MemorySystem) -> dict[int, Counter[str]]:
    """Cluster -> how many memories of which topic."""
    page, _ = await system.list_memories(NAMESPACE, where=None, after=0, limit=1000, fresh_revision=0)
    found: dict[int, Counter[str]] = {}
    for memory in page.memories:
        if memory.cluster is not None:
            found.setdefault(memory.cluster, Counter())[memory.memory_id.split("-")[0]] += 1
    return found


def pure(found: Mapping[int, Counter[str]]) -> bool:
    """Whether every cluster is of one topic, and every topic of one cluster."""
    topics = [topic for counts in found.values() for topic in counts]
    return all(len(counts) == 1 for counts in found.values()) and len(topics) == len(set(topics))


async def move(system: MemorySystem, target: int, sessions: Sequence[str], *, each: int = 3) -> None:
    """Take whole episodes to a cluster by hand."""
    ids = [f"{session}-{i}" for session in sessions for i in range(each)]
    await system.cluster_edits.move(NAMESPACE, target, ids, EditOptions())


async def merge(system: MemorySystem, target: int, sources: Sequence[int]) -> None:
    """Merge clusters by hand."""
    await system.cluster_edits.merge(NAMESPACE, target, sources, EditOptions())


async def reorganized(system: MemorySystem, **request: object) -> Operation:
    """Re-organize and wait for the end."""
    asked = ReorganizeRequest(**request)  # type: ignore[arg-type]
    return await ended(system, await system.reorganizing.begin(NAMESPACE, asked))


def answer(*steps: Mapping[str, object]) -> str:
    """A plan as a model writes it."""
    blank: dict[str, object] = {"do": "merge", "clusters": [], "memories": [], "title": "", "why": ""}
    return json.dumps({"steps": [{**blank, **step} for step in steps]})


def shown_memories(prompt: str) -> dict[str, list[int]]:
    """Numbers of the memories that a prompt shows, by topic."""
    found: dict[str, list[int]] = {}
    for line in prompt.splitlines():
        if line.startswith('{"memory"'):
            shown = json.loads(line)
            topic = next(name for name, text in TOPICS.items() if text.split()[0] in shown["text"])
            found.setdefault(topic, []).append(shown["memory"])
    return found


TRUSTED: dict[str, Any] = {"trust": TrustPolicy.FULL, "strategy": Strategy.COSINE, **SETTINGS}
"""The SLM is trusted with plans, but has no say in where the topics go at first."""
