"""Builders and recomputations that the catalog's tests share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from clag_server.catalog.api import Catalog, EmbedderPin, Namespace
from clag_server.types.cluster import Cluster, ClusterState, Episode, Placement, PlacementPlan
from clag_server.types.filters import Comparison, Filter, FilterField, Operator
from clag_server.types.ingest import StoredItem
from clag_server.types.memory import (
    DecidedBy,
    FallbackCause,
    MemoryState,
    NewMemory,
    RoutingCandidate,
    RoutingDecision,
    Vector,
)

DIM = 8
PIN = EmbedderPin("tiny", "f1", DIM)
NOW = 1_700_000_000_000_000_000
"""Nanoseconds: a day in November 2023."""


def unit(seed: int) -> Vector:
    """Return a unit vector (DIM,) that depends on the seed only."""
    vector = np.random.default_rng(seed).standard_normal(DIM).astype(np.float32)
    return np.asarray(vector / np.linalg.norm(vector), dtype=np.float32)


def total(vectors: Iterable[Vector]) -> Vector:
    """Return the sum of vectors, zero for none."""
    result = np.zeros(DIM, dtype=np.float32)
    for vector in vectors:
        result = result + vector
    return result


def routing(*, provisional: bool = False) -> RoutingDecision:
    """Return a decision that uses every field."""
    return RoutingDecision(
        decided_by=DecidedBy.VECTOR,
        candidates=(
            RoutingCandidate(1, "Docks", 0.5, -12.5, 0.75),
            RoutingCandidate(2, "猫", 0.25, None, 0.125),
        ),
        vote=2,
        reason='nearest centroid: "Docks"',
        provisional=provisional,
        time_ns=NOW,
        founded=True,
        fallback=FallbackCause.NOT_TRUSTED,
        slm_weight=0.5,
    )


def cluster(number: int, *, count: int, centroids: Sequence[Vector] = (), title: str = "") -> Cluster:
    """Return a cluster whose closed episodes have these unit centroids."""
    return Cluster(
        cluster=number,
        title=title or f"cluster {number}",
        summary="what it is about",
        tags=("a", "b"),
        representatives=(),
        vector_sum=total(centroids),
        closed_episodes=len(centroids),
        memory_count=count,
        state=ClusterState.ACTIVE,
        pinned=False,
        profile_stale=False,
        profile_count=0,
        create_time_ns=NOW,
        update_time_ns=NOW,
    )


def episode(number: int, home: int, members: Sequence[Vector], *, is_open: bool = False) -> Episode:
    """Return an episode of consecutive memories with these vectors."""
    return Episode(
        episode=number,
        session_id="s",
        cluster=home,
        vector_sum=total(members),
        memory_count=len(members),
        first_position=0,
        last_position=max(len(members) - 1, 0),
        open=is_open,
        last_time_ns=NOW,
    )


def centroid(members: Sequence[Vector]) -> Vector:
    """Return the unit centroid of vectors."""
    summed = total(members)
    return np.asarray(summed / np.linalg.norm(summed), dtype=np.float32)


def placement(key: int, home: int, of_episode: int, *, lexical: str = "word", seed: int | None = None) -> Placement:
    """Return a placement of a memory, with the vector of its key (or of `seed`)."""
    return Placement(
        key=key,
        episode=of_episode,
        cluster=home,
        embedding=unit(key if seed is None else seed),
        lexical=lexical,
        routing=routing(provisional=True),
        state=MemoryState.EMBEDDED,
    )


def tag_is(tag: str) -> Filter:
    """Return the filter for one tag."""
    return Comparison(FilterField.TAG, "", Operator.EQ, tag)


async def namespace(catalog: Catalog, name: str = "robot") -> Namespace:
    """Return a namespace, made when missing."""
    return await catalog.ensure_namespace(name, PIN, create=True)


async def store(catalog: Catalog, ns: int, items: Sequence[NewMemory]) -> Sequence[StoredItem]:
    """Store memories outside a stream."""
    return (await catalog.append(ns, items, first_seq=1, stream=None, now_ns=NOW)).items


async def store_keys(catalog: Catalog, ns: int, count: int, *, prefix: str = "m") -> list[int]:
    """Store `count` memories in session "s" and return their keys."""
    items = [NewMemory(text=f"note {i}", memory_id=f"{prefix}-{i}", session_id="s") for i in range(count)]
    return [item.key for item in await store(catalog, ns, items) if item.key is not None]


async def organized(catalog: Catalog, ns: int) -> list[int]:
    """Place nine memories: episodes 1 (keys 0-2) and 2 (3-5) closed in cluster 1, 3 (6-8) open in cluster 2."""
    keys = await store_keys(catalog, ns, 9)
    vectors = [[unit(key) for key in keys[i : i + 3]] for i in (0, 3, 6)]
    plan = PlacementPlan(
        clusters=[
            cluster(1, count=6, centroids=[centroid(v) for v in vectors[:2]]),
            cluster(2, count=3),
        ],
        episodes=[
            episode(1, 1, vectors[0]),
            episode(2, 1, vectors[1]),
            episode(3, 2, vectors[2], is_open=True),
        ],
        placements=[
            placement(key, 1 if i < 6 else 2, i // 3 + 1, lexical=f"note n{i}") for i, key in enumerate(keys)
        ],
    )
    await catalog.apply_plan(ns, plan, now_ns=NOW)
    return keys


@dataclass(frozen=True, slots=True)
class Index:
    """A vector index as the outbox describes it: partition by placement id, and what was put twice."""

    partitions: dict[int, int]
    vectors: dict[int, Vector]


async def replay(catalog: Catalog, ns: int) -> Index:
    """Apply the whole outbox, checking that every DELETE names the partition its PUT went to."""
    index = Index({}, {})
    seen: dict[int, int] = {}
    last = 0
    while ops := await catalog.read_index_ops(ns, after=last, limit=7):
        for op in ops:
            assert op.seq > last
            last = op.seq
            if op.put:
                assert op.placement_id not in seen
                seen[op.placement_id] = op.cluster
                index.partitions[op.placement_id] = op.cluster
                if op.vector is not None:
                    index.vectors[op.placement_id] = op.vector
            else:
                assert seen[op.placement_id] == op.cluster
                del index.partitions[op.placement_id]
                index.vectors.pop(op.placement_id, None)
    return index


async def assert_consistent(catalog: Catalog, ns: int) -> None:
    """Recompute clusters, episodes, placements, outbox and counts from the memories: the catalog agrees."""
    page = await catalog.list_memories(ns, where=None, after=0, limit=10_000)
    placed = [memory for memory in page.memories if memory.cluster is not None]
    clusters = {c.cluster: c for c in await catalog.clusters(ns)}
    episodes = {e.episode: e for e in await catalog.episodes(ns)}
    members = await catalog.episode_members(ns, list(episodes))
    assert sorted(members.keys.tolist()) == sorted(memory.key for memory in placed)
    for number, found in episodes.items():
        vectors = members.vectors[members.episodes == number]
        assert found.memory_count == len(vectors)
        np.testing.assert_allclose(
            found.vector_sum, vectors.sum(axis=0) if len(vectors) else np.zeros(DIM), atol=1e-5
        )
    for memory in placed:
        assert memory.episode is not None
        assert episodes[memory.episode].cluster == memory.cluster
    for number, home in clusters.items():
        assert home.memory_count == sum(memory.cluster == number for memory in placed)
        closed = [e for e in episodes.values() if e.cluster == number and not e.open]
        assert home.closed_episodes == len(closed)
        np.testing.assert_allclose(home.vector_sum, total(centroid([e.vector_sum]) for e in closed), atol=1e-5)
    await _assert_index(catalog, ns, {memory.key: memory.cluster for memory in placed})
    stats = await catalog.stats(ns)
    assert sum(stats.by_state.values()) == len(page.memories)
    for state in MemoryState:
        assert stats.by_state[state] == sum(memory.state is state for memory in page.memories)


async def _assert_index(catalog: Catalog, ns: int, homes: dict[int, int | None]) -> None:
    """The outbox, applied, is exactly the current placements; each memory has one, in its cluster."""
    current = await catalog.current_placements(ns, after=0, limit=10_000)
    index = await replay(catalog, ns)
    assert index.partitions == {op.placement_id: op.cluster for op in current}
    for op in current:
        assert op.vector is not None
        np.testing.assert_array_equal(index.vectors[op.placement_id], op.vector)
    keys = await catalog.keys_of_placements(ns, [op.placement_id for op in current])
    assert {keys[op.placement_id]: op.cluster for op in current} == homes
    assert (await catalog.index_head(ns))[1] == len(homes)
