"""A namespace to export, and rows of exports compared: what must be the same after an import, and what must not."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from clag.v1 import admin_service_pb2 as pb
from clag.v1 import memory_service_pb2 as memory_pb
from clag.v1 import types_pb2

from tests.support.ingest import store
from tests.support.process import Stubs
from tests.support.reads import ask
from tests.support.transfer import TIMEOUT_S

ORGANIZED = memory_pb.ACK_LEVEL_ORGANIZED
TOPICS = (
    "the dock in bay",
    "the battery of arm",
    "the red pallet in aisle",
    "the visitor at gate",
    "the lamp above",
)
QUESTIONS = ("where is the dock", "which battery is low", "what of the pallet", "who came to the gate", "lamp")


def filled(stubs: Stubs, namespace: str, count: int = 90) -> str:
    """A namespace with organized memories of several sessions, kinds, tags and attributes."""
    items = []
    for n in range(count):
        item = types_pb2.MemoryInput(
            memory_id=f"m{n}",
            text=f"{TOPICS[n % 5]} {n} was seen at {n % 24} o'clock",
            session_id=f"s{n % 3}",
            speaker="Anna" if n % 2 else "Kestrel",
            kind=types_pb2.MEMORY_KIND_OBSERVATION,
            tags=[f"tag{n % 4}"],
            importance=0.0 if n == 7 else 0.75,
            supersedes=[f"m{n - 5}"] if n % 20 == 10 else [],
        )
        item.attributes["n"].int_value = n
        item.attributes["ratio"].double_value = n / 4
        item.event_time.FromSeconds(1_772_000_000 + 3_600 * n)
        items.append(item)
    store(stubs, namespace, items, stream_id="fill", level=ORGANIZED)
    settled(stubs, namespace)
    return namespace


def settled(stubs: Stubs, namespace: str) -> None:
    """Wait until nothing waits to be organized and clusters keep still."""
    seen: Any = None
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        stats = stubs.admin.GetStats(pb.GetStatsRequest(namespace=namespace), timeout=20)
        now = (stats.revision.token, [(b.stage, b.pending) for b in stats.backlog if b.pending])
        if now == seen and not now[1]:
            return
        seen = now
        with_pause()
    raise AssertionError(f"{namespace} did not settle: {seen}")


def with_pause() -> None:
    """Give the pipeline its turn before it is asked again."""
    time.sleep(0.1)


def memories_of(records: Sequence[pb.ExportRecord]) -> list[types_pb2.Memory]:
    return [record.memory for record in records if record.HasField("memory")]


def clusters_of(records: Sequence[pb.ExportRecord]) -> list[types_pb2.Cluster]:
    return [record.cluster for record in records if record.HasField("cluster")]


def without_numbers(memory: types_pb2.Memory, titles: dict[str, str]) -> dict[str, Any]:
    """A memory without what must differ in another namespace: numbers of clusters and episodes, revision, etag."""
    plain = types_pb2.Memory()
    plain.CopyFrom(memory)
    plain.cluster_id = titles.get(memory.cluster_id, "")
    plain.ClearField("episode_id")
    plain.ClearField("etag")
    plain.ClearField("revision")
    plain.ClearField("access_count")
    plain.ClearField("last_access_time")
    for candidate in plain.routing.candidates:
        candidate.cluster_id = titles.get(candidate.cluster_id, "")
    kept = [c for c in plain.routing.candidates if c.cluster_id]
    del plain.routing.candidates[:]
    plain.routing.candidates.extend(kept)
    for candidate in plain.routing.candidates:
        candidate.ClearField("cosine_z")
    return {"bytes": plain.SerializeToString(deterministic=True), "id": plain.memory_id}


def found(stubs: Stubs, namespace: str, question: str) -> list[tuple[str, float]]:
    return [(hit.memory.memory_id, round(hit.score, 5)) for hit in ask(stubs, namespace, question, max_memories=20)]


def runs(memories: Sequence[types_pb2.Memory]) -> set[tuple[str, ...]]:
    """Episodes by their members."""
    members: dict[str, list[str]] = {}
    for memory in memories:
        members.setdefault(memory.episode_id, []).append(memory.memory_id)
    return {tuple(ids) for ids in members.values()}
