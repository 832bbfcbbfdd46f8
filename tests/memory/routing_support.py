"""Sessions of memories with known places on the sphere, and waiting until their routing is settled."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from clag_server.memory.centroids import unit
from clag_server.memory.system import MemorySystem
from clag_server.models.api import ChoiceOption
from clag_server.models.scripted import Script
from clag_server.types.competence import ProbeReport, Skill, SkillResult, TrustPolicy
from clag_server.types.ingest import AckLevel, IngestStages
from clag_server.types.memory import Memory, NewMemory, RoutingDecision, Vector
from tests.memory.builders import new
from tests.memory.system import NAMESPACE, get, system_on

DIM = 64

TOPICS = {"battery": {0: 1.0}, "music": {1: 1.0}, "garden": {2: 1.0}}
BETWEEN = {0: 0.75, 1: 0.66}
"""Nearer to the battery topic than to music."""

Chooser = Callable[[str, Sequence[ChoiceOption]], Sequence[float]]


def towards(weights: Mapping[int, float], *, salt: int = 0) -> Vector:
    """Return a unit vector with these parts along axes, and a little noise so that no two are equal."""
    vector = np.random.default_rng(salt).normal(scale=0.01, size=DIM).astype(np.float32)
    for axis, weight in weights.items():
        vector[axis] += weight
    return unit(vector)


def session(name: str, text: str, weights: Mapping[int, float], *, size: int = 3) -> list[NewMemory]:
    """Return the memories of one session, `<name>-0` and on, all in one direction."""
    return [
        new(
            f"{text} {n}",
            f"{name}-{n}",
            session_id=name,
            embedding=towards(weights, salt=zlib.crc32(f"{name}-{n}".encode())),
        )
        for n in range(size)
    ]


async def ingest(
    system: MemorySystem, items: Sequence[NewMemory], *, stream: str, namespace: str = NAMESPACE
) -> None:
    """Store memories and end their sessions; returns when they are organized."""
    handle = await system.open_ingest(namespace, stream, level=AckLevel.ORGANIZED, stages=IngestStages.ALL)

    async def drain() -> None:
        async for _ in handle.acks():
            pass

    reader = asyncio.create_task(drain())
    for start in range(0, len(items), 100):
        await handle.append(start + 1, items[start : start + 100])
    await handle.finish(len(items))
    await handle.close()
    await reader


async def routed(system: MemorySystem, *, namespace: str = NAMESPACE) -> None:
    """Wait until all sessions have ended and no decision awaits the SLM."""
    await until_map(system, lambda s: not s.map.open_episodes and not s.map.undecided, namespace=namespace)


async def until_map(
    system: MemorySystem,
    holds: Callable[..., bool],
    *,
    namespace: str = NAMESPACE,
) -> None:
    """Wait until something holds of a namespace's state, between two transactions."""
    pipeline = await system.registry.pipeline(namespace, create=False)
    async with asyncio.timeout(30):
        while pipeline.state.lock.locked() or not holds(pipeline.state):  # noqa: ASYNC110 - the map tells nobody
            await asyncio.sleep(0.005)


async def all_memories(system: MemorySystem, *, namespace: str = NAMESPACE) -> dict[str, Memory]:
    """Return every memory by id."""
    page, _ = await system.list_memories(namespace, where=None, after=0, limit=10_000, fresh_revision=0)
    return {memory.memory_id: memory for memory in page.memories}


def prefers(word: str) -> Chooser:
    """Return a chooser to which the clusters that mention a word are far likelier."""

    def scores(_: str, options: Sequence[ChoiceOption]) -> Sequence[float]:
        return [-10.0 if word in option.head else -50.0 - n for n, option in enumerate(options)]

    return scores


@asynccontextmanager
async def running(path: Path, script: Script, **organize: object) -> AsyncIterator[MemorySystem]:
    settings: dict[str, Any] = {"trust": TrustPolicy.FULL, "cluster_cosine": 0.05, **organize}
    async with system_on(path, script=script, **settings) as system:
        yield system


async def topics(system: MemorySystem, *, sessions: int = 2) -> dict[str, int]:
    """Store some sessions of each topic; returns the cluster of each topic, all different, with profiles."""
    for topic, weights in TOPICS.items():
        items = [item for n in range(sessions) for item in session(f"{topic}-{n}", f"about {topic}", weights)]
        await ingest(system, items, stream=f"seed-{topic}")
    await routed(system)
    await until_map(system, lambda state: all(c.title for c in state.map.clusters.values()))
    clusters = {topic: (await get(system, f"{topic}-0-0")).cluster or 0 for topic in TOPICS}
    assert len(set(clusters.values())) == len(TOPICS)
    return clusters


def calls(script: Script) -> int:
    return sum(call.kind == "choose" for call in script.calls)


def report(weight: float) -> ProbeReport:
    result = SkillResult(Skill.ROUTING, 30, 0.9, 0.8, 0.95, 0.7, 1.0, 0.0, weight)
    return ProbeReport("scripted-slm", "1", (result,), 10.0, 1)


def decision_of(memory: Memory) -> RoutingDecision:
    assert memory.routing is not None
    return memory.routing
