"""Whatever is done to a catalog in whatever order, its counts, sums, digests and references stay true."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from clag_server.catalog.api import Catalog, Evolution
from clag_server.types.cluster import Cluster, Episode, Move, PlacementPlan
from clag_server.types.memory import Link, LinkKind, Memory, MemoryState, NewMemory
from tests.catalog import support
from tests.catalog.conftest import IMPLEMENTATIONS
from tests.catalog.consistency import assert_file_consistent

T = TypeVar("T")
NOW = support.NOW

SESSIONS = st.sampled_from(["", "a", "b"])
TAGS = st.lists(st.sampled_from(["x", "y"]), unique=True).map(tuple)
TIMES = st.none() | st.integers(NOW + 1, NOW + 9)
FIELDS = (
    "text", "session_id", "tags", "speaker", "expire_time_ns", "event_time_ns", "supersedes", "embedding",
)  # fmt: skip
PICK = st.integers(0, 99)
"""Chooses one of what there is, whatever its number."""


@dataclass(frozen=True)
class Expected:
    """What a memory must be, as far as clients say it."""

    text: str
    session_id: str
    tags: tuple[str, ...]
    expire_time_ns: int | None


class AnyOrder(RuleBasedStateMachine):
    """Does to a catalog what the domain does, and remembers what clients must find."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.loop = asyncio.new_event_loop()
        self.catalog: Catalog = IMPLEMENTATIONS["sqlite"](self.directory)
        self.run(self.catalog.open())
        self.ns = self.run(support.namespace(self.catalog)).ns
        self.expected: dict[str, Expected] = {}
        self.made = 0

    def run(self, awaitable: Awaitable[T]) -> T:
        return self.loop.run_until_complete(awaitable)

    def teardown(self) -> None:
        self.run(self.catalog.close())
        self.loop.close()
        shutil.rmtree(self.directory)

    # --- what clients do
    @rule(
        count=st.integers(1, 3),
        session=SESSIONS,
        tags=TAGS,
        expires=TIMES,
        older=st.none() | PICK,
        own=st.booleans(),
    )
    def create(
        self, count: int, session: str, tags: tuple[str, ...], expires: int | None, older: int | None, own: bool
    ) -> None:
        items = []
        for _ in range(count):
            self.made += 1
            name = f"m{self.made}"
            supersedes = () if older is None or not self.expected else (self.pick(sorted(self.expected), older),)
            embedding = support.unit(1_000 + self.made) if own else None
            items.append(
                NewMemory(
                    text=name, memory_id=name, session_id=session, tags=tags, expire_time_ns=expires,
                    supersedes=supersedes, embedding=embedding,
                )
            )  # fmt: skip
            self.expected[name] = Expected(name, session, tags, expires)
        self.run(support.store(self.catalog, self.ns, items))

    @precondition(lambda self: self.expected)
    @rule(
        which=PICK, session=SESSIONS, tags=TAGS, expires=TIMES, older=PICK, own=st.booleans(),
        fields=st.sets(
            st.sampled_from(FIELDS),
            min_size=1,
        ),
    )  # fmt: skip
    def update(self, which: int, session: str, tags: tuple[str, ...], expires: int | None, older: int, own: bool,
               fields: set[str]) -> None:  # fmt: skip
        name = self.pick(sorted(self.expected), which)
        self.made += 1
        values: dict[str, Any] = {
            "text": f"new {self.made}", "session_id": session, "tags": tags, "expire_time_ns": expires,
        }  # fmt: skip
        after = NewMemory(
            **values, speaker=f"s{self.made}", event_time_ns=NOW + self.made,
            supersedes=(self.pick(sorted(self.expected), older),),
            embedding=support.unit(2_000 + self.made) if own else None,
        )  # fmt: skip
        self.run(
            self.catalog.update(
                self.ns, name, after, fields=frozenset(fields), lexical="words", etag="", now_ns=NOW
            )
        )
        self.expected[name] = replace(
            self.expected[name], **{field: values[field] for field in fields & values.keys()}
        )

    @precondition(lambda self: self.expected)
    @rule(which=PICK)
    def delete(self, which: int) -> None:
        name = self.pick(sorted(self.expected), which)
        self.run(self.catalog.delete(self.ns, name, etag="", now_ns=NOW))
        del self.expected[name]

    @rule(tag=st.sampled_from(["x", "y"]), limit=st.integers(1, 4))
    def delete_matching(self, tag: str, limit: int) -> None:
        where = support.tag_is(tag)
        matching = {name for name, memory in self.expected.items() if tag in memory.tags}
        count, last = self.run(self.catalog.count_matching(self.ns, where))
        assert count == len(matching)
        batch = self.run(self.catalog.delete_matching(self.ns, where, through_key=last, limit=limit, now_ns=NOW))
        assert set(batch.memory_ids) <= matching
        assert len(batch.memory_ids) == min(limit, count)
        for name in batch.memory_ids:
            del self.expected[name]

    @rule(now_ns=st.integers(NOW, NOW + 9), limit=st.integers(1, 4))
    def expire(self, now_ns: int, limit: int) -> None:
        times = {n: m.expire_time_ns for n, m in self.expected.items() if m.expire_time_ns is not None}
        assert self.run(self.catalog.next_expiry()) == ({self.ns: min(times.values())} if times else {})
        due = {name for name, time_ns in times.items() if time_ns <= now_ns}
        batch = self.run(self.catalog.delete_expired(self.ns, now_ns=now_ns, limit=limit))
        assert set(batch.memory_ids) <= due
        assert len(batch.memory_ids) == min(limit, len(due))
        for name in batch.memory_ids:
            del self.expected[name]

    # --- what the pipeline does
    @rule(home=PICK, new_cluster=st.booleans(), delete_meanwhile=st.booleans())
    def place(self, home: int, new_cluster: bool, delete_meanwhile: bool) -> None:
        waiting = self.run(self.catalog.pending(self.ns, MemoryState.STORED, limit=4, now_ns=NOW))
        if not waiting:
            return
        cluster, episode = self.open_episode(home, new_cluster=new_cluster)
        self.made += 1
        vectors = [
            support.unit(3_000 + self.made) if memory.embedding is None else memory.embedding for memory in waiting
        ]
        plan = PlacementPlan(
            clusters=[replace(cluster, memory_count=cluster.memory_count + len(waiting))],
            episodes=[
                replace(
                    episode,
                    memory_count=episode.memory_count + len(waiting),
                    vector_sum=support.total([episode.vector_sum, *vectors]),
                )
            ],
            placements=[
                replace(support.placement(m.key, cluster.cluster, episode.episode), embedding=vector)
                for m, vector in zip(waiting, vectors, strict=True)
            ],
        )
        if delete_meanwhile:
            self.delete(which=home)
        self.run(self.catalog.apply_plan(self.ns, plan, now_ns=NOW))

    @rule(which=PICK)
    def close_episode(self, which: int) -> None:
        episodes = [e for e in self.run(self.catalog.episodes(self.ns)) if e.open and e.memory_count]
        if not episodes:
            return
        episode = self.pick(episodes, which)
        (cluster,) = self.run(self.catalog.clusters(self.ns, [episode.cluster]))
        centroid = support.centroid([episode.vector_sum])
        plan = PlacementPlan(
            clusters=[
                replace(
                    cluster,
                    closed_episodes=cluster.closed_episodes + 1,
                    vector_sum=support.total([cluster.vector_sum, centroid]),
                )
            ],
            episodes=[replace(episode, open=False)],
            routed_episodes=[Move(episode.episode, episode.cluster, support.routing())],
        )
        self.run(self.catalog.apply_plan(self.ns, plan, now_ns=NOW))

    @rule(which=PICK, home=PICK)
    def move_episode(self, which: int, home: int) -> None:
        episodes = self.run(self.catalog.episodes(self.ns))
        if not episodes:
            return
        episode, cluster = self.pick(episodes, which), self.pick(self.run(self.catalog.clusters(self.ns)), home)
        plan = PlacementPlan(moves=[Move(episode.episode, cluster.cluster, support.routing())])
        self.run(self.catalog.apply_plan(self.ns, plan, now_ns=NOW))

    @precondition(lambda self: self.expected)
    @rule(which=PICK, linked=PICK, loser=st.booleans(), done=st.booleans())
    def evolve(self, which: int, linked: int, loser: bool, done: bool) -> None:
        memory = self.pick(self.stored(), which)
        if memory.cluster is None:
            return
        other = self.pick([*sorted(self.expected), "gone"], linked)
        change = Evolution(
            memory.key, memory.cluster, memory.key, context=f"about {self.made}",
            add_links=(Link(other, LinkKind.CAUSAL, f"because of {other}"),),
            superseded_by=other if loser else None,
            state=MemoryState.EVOLVED if done else None,
        )  # fmt: skip
        self.run(self.catalog.evolve(self.ns, [change], now_ns=NOW))

    @rule(which=PICK)
    def describe(self, which: int) -> None:
        clusters = self.run(self.catalog.clusters(self.ns))
        if clusters:
            members = tuple(memory.key for memory in self.stored()[:3])
            fresh = replace(self.pick(clusters, which), representatives=members, profile_stale=False)
            self.run(self.catalog.put_clusters(self.ns, [fresh]))

    @precondition(lambda self: self.expected)
    @rule(which=PICK, attempts=st.integers(1, 3))
    def fail(self, which: int, attempts: int) -> None:
        key = self.pick(self.stored(), which).key
        self.run(self.catalog.record_failure(self.ns, [key], error="x", max_attempts=attempts, not_before_ns=NOW))

    @rule(back=st.integers(0, 3))
    def index_catches_up(self, back: int) -> None:
        head = self.run(self.catalog.index_head(self.ns))[0]
        self.run(self.catalog.ack_index_ops(self.ns, through=head - back))

    # --- what operators do
    @rule()
    def restart(self) -> None:
        self.run(self.catalog.close())
        self.catalog = IMPLEMENTATIONS["sqlite"](self.directory)
        self.run(self.catalog.open())

    @rule(limit=st.integers(1, 9), calls=st.integers(0, 3))
    def delete_another_namespace(self, limit: int, calls: int) -> None:
        other = self.run(support.namespace(self.catalog, "other")) if not self.leaving() else self.leaving()[0]
        if not other.deleting:
            self.run(support.organized(self.catalog, other.ns))
            self.run(self.catalog.mark_deleting(other.ns, now_ns=NOW))
        for _ in range(calls):
            self.run(self.catalog.purge_namespace(other.ns, limit=limit))

    @invariant()
    def everything_agrees(self) -> None:
        found = {
            memory.memory_id: Expected(memory.text, memory.session_id, memory.tags, memory.expire_time_ns)
            for memory in self.stored()
        }
        assert found == self.expected
        assert_file_consistent(self.directory / "data" / "catalog.db")

    def pick(self, items: Any, which: int) -> Any:
        return items[which % len(items)]

    def stored(self) -> list[Memory]:
        return list(self.run(self.catalog.list_memories(self.ns, where=None, after=0, limit=10_000)).memories)

    def leaving(self) -> list[Any]:
        return [namespace for namespace in self.run(self.catalog.list_namespaces()) if namespace.deleting]

    def open_episode(self, home: int, *, new_cluster: bool) -> tuple[Cluster, Episode]:
        """Return an open episode with its cluster, made where there is none."""
        namespace = self.run(self.catalog.get_namespace("robot"))
        episodes = [episode for episode in self.run(self.catalog.episodes(self.ns)) if episode.open]
        if episodes and not new_cluster:
            episode = self.pick(episodes, home)
            return self.run(self.catalog.clusters(self.ns, [episode.cluster]))[0], episode
        clusters = self.run(self.catalog.clusters(self.ns))
        if clusters and not new_cluster:
            cluster = self.pick(clusters, home)
        else:
            cluster = support.cluster(namespace.next_cluster, count=0)
        return cluster, support.episode(namespace.next_episode, cluster.cluster, [], is_open=True)


AnyOrder.TestCase.settings = settings(
    max_examples=8, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAnyOrder = pytest.mark.timeout(900)(AnyOrder.TestCase)
