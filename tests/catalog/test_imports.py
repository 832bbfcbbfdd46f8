"""Imported rows: clusters, episodes, places, links and watermark agree after any order of rows, cuts and repeats.

After each test the file is checked by brute force (see conftest).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from clag_server.catalog.api import Catalog
from clag_server.types.cluster import ClusterState
from clag_server.types.errors import NamespaceDeleted, SequenceGap, StreamFenced
from clag_server.types.ingest import Disposition, Rejection, StreamRef
from clag_server.types.memory import AnnotationSource, Link, LinkKind, MemoryState, Vector
from clag_server.types.namespace import NamespaceSettings
from clag_server.types.transfer import (
    EmbeddedMemory,
    ImportedCluster,
    ImportedMemory,
    ImportedNamespace,
    ImportOptions,
    ImportRow,
    OnConflict,
)
from tests.catalog.conftest import Reopen
from tests.catalog.support import DIM, NOW, routing, unit
from tests.memory.builders import memory

KEEP = ImportOptions(keep_organization=True)
ANEW = ImportOptions()
REPLACE = ImportOptions(on_conflict=OnConflict.REPLACE, keep_organization=True)
SAME_SPACE = ImportedNamespace(NamespaceSettings(), same_space=True)


def cluster_row(number: int, *, representatives: Sequence[str] = ()) -> ImportedCluster:
    return ImportedCluster(
        cluster_id=f"c{number}",
        title=f"title {number}",
        summary="what it is about",
        tags=("a",),
        pinned=number == 2,
        state=ClusterState.ARCHIVED if number == 3 else ClusterState.ACTIVE,
        profiled_by=AnnotationSource.STATISTICS,
        profile_stale=False,
        memory_count=10,
        representative_ids=tuple(representatives),
        create_time_ns=NOW - 5,
        update_time_ns=NOW - 4,
    )


def memory_row(
    number: int,
    *,
    cluster: int = 1,
    episode: int = 1,
    vector: Vector | None = None,
    links: Sequence[str] = (),
    text: str = "",
    superseded_by: str = "",
) -> ImportedMemory:
    kept = replace(
        memory(number, text or f"note {number}", session=f"s{episode % 3}", position=number),
        context="a context",
        keywords=("word",),
        annotated_by=AnnotationSource.SLM,
        superseded_by=superseded_by,
        links=tuple(Link(target, LinkKind.CAUSAL, "led to it", 0.5) for target in links),
        state=MemoryState.EVOLVED,
        routing=routing(),
        access_count=7,
        embedding=vector,
    )
    return ImportedMemory(
        kept, f"c{cluster}" if cluster else "", f"e{episode}" if cluster else "", f"note {number}"
    )


async def load(
    catalog: Catalog,
    ns: int,
    rows: Sequence[ImportRow],
    options: ImportOptions = KEEP,
    *,
    step: int = 3,
    stream: str = "i",
) -> StreamRef:
    """Import all rows in batches, and finish."""
    position = await catalog.open_stream(ns, stream)
    for start in range(position.next_seq - 1, len(rows), step):
        await catalog.import_rows(
            ns, rows[start : start + step], first_seq=start + 1, stream=position.ref, options=options, now_ns=NOW
        )
    await catalog.finish_import(ns, position.ref, last_seq=len(rows), now_ns=NOW)
    return position.ref


def organized(count: int = 12, *, vectors: bool = True) -> list[ImportRow]:
    """Two clusters of two episodes each, and one without members."""
    rows: list[ImportRow] = [SAME_SPACE]
    rows += [cluster_row(1, representatives=("m3", "m0")), cluster_row(2), cluster_row(3)]
    for n in range(count):
        episode = n // 3
        links = [f"m{n + 1}", "never"] if n == 0 else [f"m{n - 1}"]
        rows.append(
            memory_row(
                n, cluster=1 + episode % 2, episode=episode, vector=unit(n) if vectors else None, links=links
            )
        )
    return rows


async def test_memories_with_embeddings_come_to_their_clusters_and_episodes_at_once(
    catalog: Catalog, ns: int
) -> None:
    await load(catalog, ns, organized())
    clusters = {cluster.title: cluster for cluster in await catalog.clusters(ns)}
    assert sorted(clusters) == ["title 1", "title 2"]  # nobody came into the third
    assert (clusters["title 1"].memory_count, clusters["title 1"].closed_episodes) == (6, 2)
    assert clusters["title 2"].pinned
    first = await catalog.memory(ns, "m0", embedding=True)
    assert (first.state, first.context, first.access_count) == (MemoryState.EVOLVED, "a context", 7)
    assert [link.memory_id for link in first.links] == ["m1"]
    assert first.embedding is not None
    np.testing.assert_array_equal(first.embedding, unit(0))
    keys = [(await catalog.memory(ns, memory_id)).key for memory_id in ("m3", "m0")]
    assert set(clusters["title 1"].representatives) <= set(keys)
    episodes = await catalog.episodes(ns)
    assert [(e.memory_count, e.open) for e in episodes] == [(3, False)] * 4


async def test_a_stream_that_is_opened_again_maps_clusters_and_episodes_alike(reopen: Reopen) -> None:
    catalog = await reopen()
    from tests.catalog import support

    ns = (await support.namespace(catalog)).ns
    rows = organized()
    sent = 0
    for cut in (2, 6, 9, len(rows)):
        position = await catalog.open_stream(ns, "i")
        assert position.next_seq == sent + 1
        await catalog.import_rows(
            ns, rows[sent:cut], first_seq=sent + 1, stream=position.ref, options=KEEP, now_ns=NOW
        )
        again = await catalog.import_rows(
            ns, rows[sent:cut], first_seq=sent + 1, stream=position.ref, options=KEEP, now_ns=NOW
        )
        assert list(again.items) == []
        sent = cut
        catalog = await reopen()
    position = await catalog.open_stream(ns, "i")
    final, _ = await catalog.finish_import(ns, position.ref, last_seq=len(rows), now_ns=NOW)
    assert (final.created, final.duplicates, final.rejected) == (len(rows), 0, 0)
    assert len(await catalog.episodes(ns)) == 4
    assert len(await catalog.clusters(ns)) == 2


async def test_without_embeddings_places_are_reserved_and_taken_when_they_come(catalog: Catalog, ns: int) -> None:
    await load(catalog, ns, organized(vectors=False))
    waiting = await catalog.pending(ns, MemoryState.STORED, limit=100, now_ns=NOW)
    assert len(waiting) == 12
    assert waiting[0].context == "a context"
    reserved = await catalog.reserved_places(ns, [one.key for one in waiting])
    assert len({place.episode for place in reserved.values()}) == 4
    order = list(waiting)
    random.Random(7).shuffle(order)  # noqa: S311  # a test's, and no secret
    for start in range(0, 12, 5):
        embedded = [EmbeddedMemory(m.key, unit(m.key), "tokens") for m in order[start : start + 5]]
        result = await catalog.place_reserved(ns, embedded, now_ns=NOW)
        assert len(result.items) == len(embedded)
    assert await catalog.reserved_places(ns, [one.key for one in waiting]) == {}
    episodes = await catalog.episodes(ns)
    assert sorted(e.memory_count for e in episodes) == [3, 3, 3, 3]
    assert (await catalog.memory(ns, "m0")).state is MemoryState.EVOLVED


async def test_a_place_whose_cluster_is_gone_is_given_up(catalog: Catalog, ns: int) -> None:
    rows: list[ImportRow] = [SAME_SPACE, cluster_row(1), memory_row(1)]
    await load(catalog, ns, rows)
    (waiting,) = await catalog.pending(ns, MemoryState.STORED, limit=10, now_ns=NOW)
    from clag_server.types.cluster import PlacementPlan

    (cluster,) = await catalog.clusters(ns)
    await catalog.apply_plan(ns, PlacementPlan(removed_clusters=[cluster.cluster]), now_ns=NOW)
    result = await catalog.place_reserved(ns, [EmbeddedMemory(waiting.key, unit(1), "t")], now_ns=NOW)
    assert list(result.items) == []
    assert await catalog.reserved_places(ns, [waiting.key]) == {}


async def test_decisions_name_our_clusters_and_leave_out_candidates_that_did_not_come(
    catalog: Catalog, ns: int
) -> None:
    await load(catalog, ns, [SAME_SPACE, cluster_row(9), memory_row(9, cluster=9, vector=unit(9))], stream="first")
    odd = memory_row(0, cluster=2, vector=unit(0))
    decision = routing(provisional=True)
    gone = replace(decision.candidates[0], cluster=77)
    decision = replace(decision, candidates=(gone, *decision.candidates))
    rows: list[ImportRow] = [
        SAME_SPACE,
        cluster_row(1),
        cluster_row(2),
        replace(odd, memory=replace(odd.memory, routing=decision)),
    ]
    await load(catalog, ns, rows)
    (placed,) = [
        m for m in (await catalog.list_memories(ns, where=None, after=0, limit=9)).memories if m.memory_id == "m0"
    ]
    assert placed.routing is not None
    assert [(c.cluster, c.title) for c in placed.routing.candidates] == [(2, "Docks"), (3, "猫")]
    assert (placed.cluster, placed.routing.vote, placed.routing.provisional) == (3, 3, False)


async def test_embeddings_of_another_space_are_dropped(catalog: Catalog, ns: int) -> None:
    rows = organized()
    rows[0] = replace(SAME_SPACE, same_space=False)
    await load(catalog, ns, rows)
    assert not any(m.has_embedding for m in await catalog.pending(ns, MemoryState.STORED, limit=99, now_ns=NOW))
    wrong = replace(memory_row(99).memory, embedding=np.ones(DIM + 1, dtype=np.float32))
    position = await catalog.open_stream(ns, "j")
    result = await catalog.import_rows(
        ns,
        [SAME_SPACE, ImportedMemory(wrong, "", "", "")],
        first_seq=1,
        stream=position.ref,
        options=KEEP,
        now_ns=NOW,
    )
    assert result.items[1].rejection is not None
    assert result.items[1].rejection.field == "memory.embedding"


async def test_rows_are_kept_or_replaced_and_a_replaced_memory_keeps_its_key(catalog: Catalog, ns: int) -> None:
    rows = organized()
    await load(catalog, ns, rows)
    before = {m.memory_id: m.key for m in (await catalog.list_memories(ns, where=None, after=0, limit=99)).memories}
    position = await catalog.open_stream(ns, "again")
    kept = await catalog.import_rows(ns, rows, first_seq=1, stream=position.ref, options=KEEP, now_ns=NOW)
    memories = [item for item in kept.items if item.memory_id]
    assert {item.disposition for item in memories} == {Disposition.DUPLICATE}
    changed = [
        replace(row, memory=replace(row.memory, text=f"new {row.memory.text}"))
        if isinstance(row, ImportedMemory)
        else row
        for row in rows
    ]
    twice = [*changed, *[row for row in changed if isinstance(row, ImportedMemory)][:4]]
    await load(catalog, ns, twice, REPLACE, stream="r", step=7)
    page = await catalog.list_memories(ns, where=None, after=0, limit=99)
    assert {m.memory_id: m.key for m in page.memories} == before
    assert all(m.text.startswith("new ") for m in page.memories)
    history = await catalog.memory_history(ns, "m2", before=None, limit=10)
    assert "text" in {change.field for entry in history.entries for change in entry.changes}
    stats = await catalog.stats(ns)
    assert stats.created - stats.deleted == 12


async def test_a_row_that_says_nothing_new_leaves_the_memory_and_its_place_as_they_are(
    catalog: Catalog, ns: int
) -> None:
    rows: list[ImportRow] = [
        replace(row, memory=replace(row.memory, attributes={"n": 1, "at": "dock", "sure": True}))
        if isinstance(row, ImportedMemory)
        else row
        for row in organized()
    ]
    await load(catalog, ns, rows)
    before = (await catalog.list_memories(ns, where=None, after=0, limit=99, embeddings=True)).memories
    first, second, third = [row for row in rows if isinstance(row, ImportedMemory)][:3]
    again: list[ImportRow] = [
        SAME_SPACE,
        replace(first, memory=replace(first.memory, attributes={"sure": True, "at": "dock", "n": 1})),
        replace(second, memory=replace(second.memory, attributes={"n": 1.0, "at": "dock", "sure": True})),
        replace(third, memory=replace(third.memory, access_count=99, embedding=None)),
        replace(second, memory=replace(second.memory, attributes={"n": 1.0, "at": "dock", "sure": True})),
    ]
    position = await catalog.open_stream(ns, "r")
    options = ImportOptions(on_conflict=OnConflict.REPLACE)
    result = await catalog.import_rows(ns, again, first_seq=1, stream=position.ref, options=options, now_ns=NOW + 9)
    same, new = Disposition.DUPLICATE, Disposition.CREATED
    assert [item.disposition for item in result.items[1:]] == [same, new, same, same]
    assert list(result.waiting) == [before[1].key]
    after = (await catalog.list_memories(ns, where=None, after=0, limit=99, embeddings=True)).memories
    assert [(m.revision, m.cluster, m.episode, m.state) for m in (after[0], after[2])] == [
        (m.revision, m.cluster, m.episode, m.state) for m in (before[0], before[2])
    ]
    history = await catalog.memory_history(ns, "m1", before=None, limit=10)
    assert {change.field for entry in history.entries for change in entry.changes} >= {"attributes"}
    await catalog.finish_import(ns, position.ref, last_seq=len(again), now_ns=NOW + 9)


async def test_without_the_organization_rows_are_stored_as_new(catalog: Catalog, ns: int) -> None:
    await load(catalog, ns, organized(), ANEW)
    page = await catalog.list_memories(ns, where=None, after=0, limit=99)
    assert {m.state for m in page.memories} == {MemoryState.STORED}
    assert {(m.context, m.links, m.routing, m.create_time_ns) for m in page.memories} == {
        ("", (), None, memory(1).create_time_ns)
    }
    assert await catalog.clusters(ns) == []
    assert await catalog.reserved_places(ns, [m.key for m in page.memories]) == {}


async def test_streams_are_fenced_gaps_refused_and_rejections_counted(catalog: Catalog, ns: int) -> None:
    old = await catalog.open_stream(ns, "i")
    new = await catalog.open_stream(ns, "i")
    with pytest.raises(StreamFenced):
        await catalog.import_rows(ns, [SAME_SPACE], first_seq=1, stream=old.ref, options=KEEP, now_ns=NOW)
    with pytest.raises(SequenceGap):
        await catalog.import_rows(ns, [SAME_SPACE], first_seq=2, stream=new.ref, options=KEEP, now_ns=NOW)
    await catalog.import_rows(
        ns, [Rejection("memory.text", "is empty")], first_seq=1, stream=new.ref, options=KEEP, now_ns=NOW
    )
    with pytest.raises(SequenceGap):
        await catalog.finish_import(ns, new.ref, last_seq=7, now_ns=NOW)
    final, _ = await catalog.finish_import(ns, new.ref, last_seq=1, now_ns=NOW)
    assert (final.created, final.rejected) == (0, 1)
    await catalog.mark_deleting(ns, now_ns=NOW)
    with pytest.raises(NamespaceDeleted):
        await catalog.import_rows(ns, [SAME_SPACE], first_seq=2, stream=new.ref, options=KEEP, now_ns=NOW)


@pytest.mark.parametrize("seed", range(6))
async def test_any_rows_in_any_batches_leave_a_catalog_that_agrees_with_itself(
    catalog: Catalog, ns: int, seed: int
) -> None:
    dice = random.Random(seed)  # noqa: S311  # a test's, and no secret
    for stream in range(3):
        rows: list[ImportRow] = [SAME_SPACE] if dice.random() < 0.8 else []
        rows += [cluster_row(n) for n in range(1, 4) if dice.random() < 0.8]
        for _ in range(30):
            number = dice.randrange(25)
            rows.append(
                memory_row(
                    number,
                    cluster=dice.randrange(5),
                    episode=dice.randrange(6),
                    vector=unit(number) if dice.random() < 0.7 else None,
                    links=[f"m{dice.randrange(40)}"],
                    text=f"note {dice.random()}",
                )
            )
        options = dice.choice([KEEP, ANEW, REPLACE, replace(ANEW, on_conflict=OnConflict.REPLACE)])
        await load(catalog, ns, rows, options, step=dice.randrange(1, 12), stream=f"i{stream}")
        waiting = await catalog.pending(ns, MemoryState.STORED, limit=99, now_ns=NOW)
        some = [EmbeddedMemory(m.key, unit(m.key), "t") for m in waiting if dice.random() < 0.5]
        await catalog.place_reserved(ns, some, now_ns=NOW)


async def test_nothing_is_superseded_by_a_memory_that_did_not_come(catalog: Catalog, ns: int) -> None:
    rows: list[ImportRow] = [memory_row(1, superseded_by="m2"), memory_row(2), memory_row(3, superseded_by="never")]
    await load(catalog, ns, rows)
    assert [(await catalog.memory(ns, f"m{n}")).superseded_by for n in (1, 3)] == ["m2", ""]
