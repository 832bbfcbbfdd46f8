"""The queue of the pipeline is the memories' state; evolution keeps history; failures are counted and bounded."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from clag_server.catalog.api import Catalog, Evolution
from clag_server.types.cluster import PlacementPlan
from clag_server.types.memory import AnnotationSource, Link, LinkKind, MemoryState, NewMemory
from tests.catalog import support
from tests.catalog.conftest import Reopen

NOW = support.NOW


async def placed(catalog: Catalog, ns: int, count: int) -> list[int]:
    keys = await support.store_keys(catalog, ns, count)
    plan = PlacementPlan(
        clusters=[support.cluster(1, count=count)],
        episodes=[support.episode(1, 1, [support.unit(key) for key in keys], is_open=True)],
        placements=[support.placement(key, 1, 1) for key in keys],
    )
    await catalog.apply_plan(ns, plan, now_ns=NOW)
    return keys


async def waiting(catalog: Catalog, ns: int, state: MemoryState, *, now_ns: int = NOW) -> list[int]:
    return [memory.key for memory in await catalog.pending(ns, state, limit=100, now_ns=now_ns)]


async def test_memories_wait_by_state_in_order_also_after_a_restart(reopen: Reopen) -> None:
    catalog = await reopen()
    ns = (await support.namespace(catalog)).ns
    keys = await placed(catalog, ns, 3)
    items = [NewMemory(text="new", memory_id="n", embedding=support.unit(5))]
    (new,) = [item.key for item in await support.store(catalog, ns, items)]
    catalog = await reopen()
    assert await waiting(catalog, ns, MemoryState.EMBEDDED) == keys
    (stored,) = await catalog.pending(ns, MemoryState.STORED, limit=5, now_ns=NOW)
    assert stored.key == new
    assert stored.embedding is not None
    assert len(await catalog.pending(ns, MemoryState.EMBEDDED, limit=2, now_ns=NOW)) == 2
    assert await catalog.backlog() == {ns: {MemoryState.EMBEDDED: 3, MemoryState.STORED: 1}}


async def test_a_failed_memory_waits_for_its_time_and_is_quarantined_at_last(reopen: Reopen) -> None:
    catalog = await reopen()
    ns = (await support.namespace(catalog)).ns
    bad, good = await support.store_keys(catalog, ns, 2)
    for attempt in (1, 2):
        (task,) = await catalog.record_failure(ns, [bad], error="boom", max_attempts=3, not_before_ns=NOW + 10)
        assert (task.key, task.attempts, task.quarantined) == (bad, attempt, False)
    catalog = await reopen()
    assert await waiting(catalog, ns, MemoryState.STORED) == [good]
    assert await waiting(catalog, ns, MemoryState.STORED, now_ns=NOW + 10) == [bad, good]
    (task,) = await catalog.record_failure(ns, [bad, 12_345], error="boom", max_attempts=3, not_before_ns=NOW)
    assert task.quarantined
    assert await waiting(catalog, ns, MemoryState.STORED, now_ns=NOW + 10) == [good]
    memory = await catalog.memory(ns, "m-0")
    assert (memory.state, memory.error) == (MemoryState.QUARANTINED, "boom")
    assert (await catalog.stats(ns)).by_state[MemoryState.QUARANTINED] == 1
    assert await catalog.record_failure(ns, [bad], error="again", max_attempts=3, not_before_ns=NOW) == []


async def test_progress_forgets_failed_attempts(catalog: Catalog, ns: int) -> None:
    (key,) = await support.store_keys(catalog, ns, 1)
    await catalog.record_failure(ns, [key], error="boom", max_attempts=2, not_before_ns=NOW + 10)
    plan = PlacementPlan(
        clusters=[support.cluster(1, count=1)],
        episodes=[support.episode(1, 1, [support.unit(key)], is_open=True)],
        placements=[support.placement(key, 1, 1)],
    )
    await catalog.apply_plan(ns, plan, now_ns=NOW)
    assert await waiting(catalog, ns, MemoryState.EMBEDDED) == [key]
    (task,) = await catalog.record_failure(ns, [key], error="boom", max_attempts=2, not_before_ns=NOW)
    assert (task.attempts, task.quarantined) == (1, False)


async def test_evolution_changes_what_it_names_and_never_the_text(catalog: Catalog, ns: int) -> None:
    keys = await placed(catalog, ns, 3)
    before = await catalog.memory(ns, "m-0")
    link = Link("m-1", LinkKind.CAUSAL, "because", 0.5)
    gone, own = Link("nobody", LinkKind.CAUSAL, ""), Link("m-0", LinkKind.CAUSAL, "")
    change = Evolution(
        keys[0], 1, keys[2], context="about docks", keywords=("dock",), evolved_tags=("place",),
        add_links=(link, gone, own), confidence=0.5, superseded_by="m-2", annotated_by=AnnotationSource.SLM,
        state=MemoryState.EVOLVED,
    )  # fmt: skip
    revision = await catalog.evolve(ns, [change], now_ns=NOW + 1)
    after = await catalog.memory(ns, "m-0")
    assert (after.text, after.cluster, after.routing) == (before.text, before.cluster, before.routing)
    assert (after.context, after.keywords, after.evolved_tags) == ("about docks", ("dock",), ("place",))
    assert (after.links, after.confidence, after.superseded_by) == ((link,), 0.5, "m-2")
    assert (after.state, after.annotated_by) == (MemoryState.EVOLVED, AnnotationSource.SLM)
    assert after.revision == revision > before.revision
    assert await catalog.evolve(ns, [change], now_ns=NOW + 2) == revision
    assert (await catalog.stats(ns)).by_state[MemoryState.EVOLVED] == 1
    assert await catalog.backlog() == {ns: {MemoryState.EMBEDDED: 2}}


async def test_evolution_of_a_memory_that_left_the_cluster_changes_nothing(catalog: Catalog, ns: int) -> None:
    keys = await placed(catalog, ns, 1)
    before = await catalog.memory(ns, "m-0")
    await catalog.evolve(ns, [Evolution(keys[0], 2, keys[0], context="late")], now_ns=NOW)
    assert await catalog.memory(ns, "m-0") == before


async def test_history_keeps_the_old_values_and_the_cause(catalog: Catalog, ns: int, database_file: Path) -> None:
    keys = await placed(catalog, ns, 2)
    for context in ("first", "second"):
        await catalog.evolve(ns, [Evolution(keys[0], 1, keys[1], context=context)], now_ns=NOW)
    with sqlite3.connect(database_file) as connection:
        rows = connection.execute("SELECT key, cause, old FROM memory_history ORDER BY revision").fetchall()
    connection.close()
    assert [(key, cause, json.loads(old)) for key, cause, old in rows] == [
        (keys[0], keys[1], {"context": ""}),
        (keys[0], keys[1], {"context": "first"}),
    ]


async def test_a_profile_written_late_does_not_change_how_many_memories_a_cluster_has(
    catalog: Catalog, ns: int
) -> None:
    await placed(catalog, ns, 3)
    (stale,) = await catalog.clusters(ns)
    await catalog.delete(ns, "m-0", etag="", now_ns=NOW)
    await catalog.put_clusters(ns, [stale])
    await support.assert_consistent(catalog, ns)


async def test_evolved_tags_are_found_like_the_callers(catalog: Catalog, ns: int) -> None:
    keys = await placed(catalog, ns, 2)
    await catalog.evolve(ns, [Evolution(keys[1], 1, keys[1], evolved_tags=("dock",))], now_ns=NOW)
    where = support.tag_is("dock")
    assert (await catalog.matching_keys(ns, where, limit=5)).keys.tolist() == [keys[1]]
