"""What is deleted is gone everywhere, one memory or thousands, and takes with it what others said of it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from clag_server.catalog.api import Catalog, Evolution
from clag_server.types.change import HistoryCause
from clag_server.types.cluster import PlacementPlan
from clag_server.types.errors import InvalidField
from clag_server.types.filters import And, Comparison, FilterField, Not, Operator, Or
from clag_server.types.ingest import Disposition
from clag_server.types.memory import Link, LinkKind, MemoryState, NewMemory
from tests.catalog import support

NOW = support.NOW
SECRET = "the code of the vault is 4711"


def any_text_of(file: Path) -> str:
    """Return every text in the rows of a catalog file, full-text tables included."""
    with closing(sqlite3.connect(file)) as connection:
        return "\n".join(connection.iterdump())


async def linked(catalog: Catalog, ns: int) -> list[int]:
    """Organize nine memories; m-0 and m-3 link to m-1 with reasons that quote it, twice each."""
    keys = await support.organized(catalog, ns)
    for source in (keys[0], keys[3]):
        for kind in (LinkKind.CAUSAL, LinkKind.REFINES):
            link = Link("m-1", kind, f"because {SECRET}", 0.5)
            kept = Link("m-2", LinkKind.SIMILAR, "alike", 0.25)
            change = Evolution(source, 1, keys[1], add_links=(link, kept))
            await catalog.evolve(ns, [change], now_ns=NOW)
    return keys


async def test_reasons_that_quote_a_deleted_memory_go_from_links_and_from_history(
    catalog: Catalog, ns: int, database_file: Path
) -> None:
    keys = await linked(catalog, ns)
    assert SECRET in any_text_of(database_file)
    await catalog.delete(ns, "m-1", etag="", now_ns=NOW + 3)
    assert SECRET not in any_text_of(database_file)
    memory = await catalog.memory(ns, "m-0")
    assert [link.memory_id for link in memory.links] == ["m-2"]
    with closing(sqlite3.connect(database_file)) as connection:
        rows = connection.execute(
            "SELECT reason, cause, old FROM memory_history WHERE key = ? ORDER BY revision", (keys[0],)
        ).fetchall()
    assert [row[0] for row in rows] == [HistoryCause.EVOLUTION, HistoryCause.EVOLUTION, HistoryCause.DELETION]
    old = [[link[:3] for link in json.loads(json.loads(row[2])["links"])] for row in rows]
    causal, kept = ["m-1", LinkKind.CAUSAL, ""], ["m-2", LinkKind.SIMILAR, "alike"]
    assert old == [[], [causal, kept], [causal, kept, ["m-1", LinkKind.REFINES, ""]]]
    assert rows[-1][1] == keys[1]


async def test_the_history_of_a_deleted_memory_goes_with_it(catalog: Catalog, ns: int, database_file: Path) -> None:
    keys = await support.organized(catalog, ns)
    await catalog.evolve(ns, [Evolution(keys[1], 1, keys[1], context=SECRET)], now_ns=NOW)
    await catalog.evolve(ns, [Evolution(keys[1], 1, keys[1], context="other")], now_ns=NOW)
    await catalog.delete(ns, "m-1", etag="", now_ns=NOW)
    assert SECRET not in any_text_of(database_file)


async def test_what_a_deleted_memory_superseded_no_longer_is_and_history_says_why(
    catalog: Catalog, ns: int
) -> None:
    await support.store_keys(catalog, ns, 1)
    await support.store(catalog, ns, [NewMemory(text="new", memory_id="new", supersedes=("m-0",))])
    await catalog.delete(ns, "new", etag="", now_ns=NOW)
    assert (await catalog.memory(ns, "m-0")).superseded_by == ""
    page = await catalog.memory_history(ns, "m-0", before=None, limit=9)
    assert [entry.cause for entry in page.entries][:2] == [HistoryCause.DELETION, HistoryCause.CONFLICT]


async def test_nothing_is_superseded_by_a_memory_that_is_gone_when_evolution_says_so(
    catalog: Catalog, ns: int
) -> None:
    keys = await support.organized(catalog, ns)
    late = Evolution(keys[0], 1, keys[1], superseded_by="m-1", confidence=0.5)
    await catalog.delete(ns, "m-1", etag="", now_ns=NOW)
    await catalog.evolve(ns, [late], now_ns=NOW)
    memory = await catalog.memory(ns, "m-0")
    assert (memory.superseded_by, memory.confidence) == ("", 0.5)


async def test_a_batch_deletes_only_what_matches_up_to_its_limit_and_last_key(catalog: Catalog, ns: int) -> None:
    keys = await support.organized(catalog, ns)
    where = Comparison(FilterField.EPISODE_ID, "", Operator.IN, (1, 2))
    assert await catalog.count_matching(ns, where) == (6, keys[5])
    first = await catalog.delete_matching(ns, where, through_key=keys[4], limit=4, now_ns=NOW)
    assert (list(first.keys), list(first.memory_ids)) == (keys[:4], [f"m-{i}" for i in range(4)])
    assert (first.episodes, first.clusters) == (frozenset({1, 2}), frozenset({1}))
    assert first.revision == await catalog.revision()
    await support.assert_consistent(catalog, ns)
    rest = await catalog.delete_matching(
        ns, where, through_key=keys[4], limit=4, now_ns=NOW, after_key=first.keys[-1]
    )
    assert list(rest.keys) == [keys[4]]
    assert await catalog.count_matching(ns, where) == (1, keys[5])
    none = await catalog.delete_matching(ns, where, through_key=keys[4], limit=4, now_ns=NOW)
    assert (list(none.keys), none.episodes, none.clusters) == ([], frozenset(), frozenset())
    await support.assert_consistent(catalog, ns)


async def test_memories_that_link_to_each_other_are_deleted_together(catalog: Catalog, ns: int) -> None:
    keys = await linked(catalog, ns)
    back = Evolution(keys[1], 1, keys[1], add_links=(Link("m-0", LinkKind.CAUSAL, "back"),), superseded_by="m-0")
    await catalog.evolve(ns, [back], now_ns=NOW)
    where = Comparison(FilterField.EPISODE_ID, "", Operator.EQ, 1)
    batch = await catalog.delete_matching(ns, where, through_key=keys[-1], limit=99, now_ns=NOW)
    assert list(batch.keys) == keys[:3]
    assert (await catalog.memory(ns, "m-3")).links == ()
    await support.assert_consistent(catalog, ns)


async def test_a_batch_marks_each_profile_it_touches_once(catalog: Catalog, ns: int) -> None:
    keys = await support.organized(catalog, ns)
    named = [replace(c, representatives=(keys[0], keys[1], keys[5])) for c in await catalog.clusters(ns)]
    await catalog.put_clusters(ns, named)
    before = await catalog.revision()
    where = Comparison(FilterField.EPISODE_ID, "", Operator.EQ, 1)
    batch = await catalog.delete_matching(ns, where, through_key=keys[-1], limit=99, now_ns=NOW)
    assert [c.representatives for c in await catalog.clusters(ns)] == [(keys[5],), (keys[5],)]
    assert batch.revision - before == 2 + 3  # two clusters, three memories


async def test_memories_without_a_place_match_and_are_deleted_too(catalog: Catalog, ns: int) -> None:
    keys = await support.store_keys(catalog, ns, 3)
    await catalog.record_failure(ns, keys[:1], error="x", max_attempts=1, not_before_ns=NOW)
    await catalog.record_failure(ns, keys[1:2], error="x", max_attempts=9, not_before_ns=NOW)
    assert await catalog.count_matching(ns, And(())) == (3, keys[-1])
    batch = await catalog.delete_matching(ns, And(()), through_key=keys[-1], limit=9, now_ns=NOW)
    assert (list(batch.keys), batch.episodes) == (keys, frozenset())
    assert sum((await catalog.stats(ns)).by_state.values()) == 0


async def test_thousands_are_deleted_in_batches_until_none_is_left(catalog: Catalog, ns: int) -> None:
    for start in range(0, 3_000, 500):
        await support.store(
            catalog, ns,
            [NewMemory(text="x", tags=("odd",) if i % 6 else ()) for i in range(start, start + 500)],
        )  # fmt: skip
    where = support.tag_is("odd")
    count, last = await catalog.count_matching(ns, where)
    assert count == 2_500
    batches, after = [], 0
    while True:
        batch = await catalog.delete_matching(ns, where, through_key=last, limit=512, now_ns=NOW, after_key=after)
        if not batch.keys:
            break
        batches.append(len(batch.keys))
        after = batch.keys[-1]
    assert batches == [512, 512, 512, 512, 452]
    assert await catalog.count_matching(ns, where) == (0, 0)
    assert await catalog.count_matching(ns, Not(where)) == (500, last if (last - 1) % 6 == 0 else last - 5)
    assert (await catalog.stats(ns)).deleted == 2_500


async def test_a_filter_that_cannot_be_run_deletes_nothing(catalog: Catalog, ns: int) -> None:
    await support.store_keys(catalog, ns, 1)
    deep: And | Not = And(())
    for _ in range(40):
        deep = Not(deep)
    with pytest.raises(InvalidField):
        await catalog.delete_matching(ns, deep, through_key=9, limit=9, now_ns=NOW)
    with pytest.raises(InvalidField):
        await catalog.count_matching(ns, deep)
    assert await catalog.count_matching(ns, Or(())) == (0, 0)
    assert (await catalog.stats(ns)).created == 1


async def test_the_log_says_where_a_deleted_memory_was(catalog: Catalog, ns: int) -> None:
    keys = await support.organized(catalog, ns)
    before = await catalog.revision()
    await catalog.delete(ns, "m-7", etag="", now_ns=NOW + 1)
    deleted = [c for c in (await catalog.changes(after=before, limit=99)).changes if c.memory_id]
    assert [(c.key, c.memory_id, c.cluster, c.time_ns) for c in deleted] == [(keys[7], "m-7", 2, NOW + 1)]


async def test_retrying_the_create_of_a_deleted_memory_does_not_bring_it_back(catalog: Catalog, ns: int) -> None:
    memory = NewMemory(text="once", memory_id="a")
    await catalog.create(ns, memory, request_id="r", now_ns=NOW)
    await catalog.delete(ns, "a", etag="", now_ns=NOW)
    again = (await catalog.create(ns, memory, request_id="r", now_ns=NOW + 1)).items[0]
    assert (again.disposition, again.memory_id, again.key) == (Disposition.DUPLICATE, "a", None)
    assert sum((await catalog.stats(ns)).by_state.values()) == 0
    new = (await catalog.create(ns, memory, request_id="r2", now_ns=NOW + 2)).items[0]
    assert new.disposition is Disposition.CREATED


async def test_an_id_may_be_used_again_after_a_delete_with_nothing_of_the_first(catalog: Catalog, ns: int) -> None:
    await linked(catalog, ns)
    await catalog.delete(ns, "m-1", etag="", now_ns=NOW)
    await support.store(catalog, ns, [NewMemory(text="another", memory_id="m-1")])
    memory = await catalog.memory(ns, "m-1")
    assert (memory.state, memory.cluster, memory.context) == (MemoryState.STORED, None, "")
    assert "m-1" not in {link.memory_id for link in (await catalog.memory(ns, "m-0")).links}
    assert len((await catalog.memory_history(ns, "m-1", before=None, limit=9)).entries) == 1


async def test_an_episode_that_loses_its_end_ends_earlier(catalog: Catalog, ns: int) -> None:
    await support.organized(catalog, ns)
    await catalog.delete(ns, "m-5", etag="", now_ns=NOW)
    (episode,) = await catalog.episodes(ns, [2])
    assert (episode.first_position, episode.last_position, episode.memory_count) == (3, 4, 2)


async def test_a_plan_that_was_made_before_a_batch_was_deleted_skips_what_is_gone(
    catalog: Catalog, ns: int
) -> None:
    keys = await support.store_keys(catalog, ns, 4)
    vectors = [support.unit(key) for key in keys]
    await catalog.delete_matching(ns, And(()), through_key=keys[1], limit=9, now_ns=NOW)
    plan = PlacementPlan(
        clusters=[support.cluster(1, count=4)],
        episodes=[support.episode(1, 1, vectors, is_open=True)],
        placements=[support.placement(key, 1, 1) for key in keys],
    )
    await catalog.apply_plan(ns, plan, now_ns=NOW)
    await support.assert_consistent(catalog, ns)
