"""Limits and states that need an index of their own: shared partitions, and the way from nothing to READY."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clag_server.vectors.api import IndexState
from clag_server.vectors.settings import IndexSettings
from tests.vectors.catalog_double import DIM, MemoryFeed, unit
from tests.vectors.conftest import OpenIndex
from tests.vectors.helpers import checked, found, partitions, reached, settled, written_rows


async def test_more_clusters_than_partitions_share_some_and_stay_apart_in_searches(
    open_on_either: OpenIndex,
) -> None:
    feed = MemoryFeed()
    settings = IndexSettings(partitions=6, shared_partitions=2)
    index = await open_on_either(feed, settings)
    placed = {cluster: feed.put(1, cluster, unit(cluster)) for cluster in range(12)}
    index.notify(1, DIM)
    await settled(index, 1)
    assert await partitions(index, 1) == {"c0", "c1", "c2", "s0", "s1"}
    for cluster, placement_id in placed.items():
        assert await found(index, 1, [cluster], unit(0)) == [placement_id]
    assert sorted(await found(index, 1, [1, 6, 8], unit(0))) == [placed[1], placed[6], placed[8]]
    await index.stop()
    again = await open_on_either(feed, settings)
    again.notify(1, DIM)
    moved = feed.move(1, placed[6], 2)
    again.notify(1, DIM)
    await settled(again, 1)
    assert await found(again, 1, [6], unit(0)) == []
    assert moved in await found(again, 1, [2], unit(0))
    assert await written_rows(again, 1) == 12


async def test_a_collection_whose_clusters_share_partitions_in_another_way_is_rebuilt(
    open_on_either: OpenIndex,
) -> None:
    feed = MemoryFeed()
    placed = {cluster: feed.put(1, cluster, unit(cluster)) for cluster in range(12)}
    for buckets in (2, 3):
        index = await open_on_either(feed, IndexSettings(partitions=7, shared_partitions=buckets))
        index.notify(1, DIM)
        await settled(index, 1)
        for cluster, placement_id in placed.items():
            assert await found(index, 1, [cluster], unit(0)) == [placement_id]
        shared = {name for name in await partitions(index, 1) if name.startswith("s")}
        assert shared == {f"s{bucket}" for bucket in range(buckets)}
        await index.stop()


@pytest.mark.slow
async def test_a_namespace_may_have_1100_clusters(open_index: OpenIndex) -> None:
    """With the limits of every user: 499 clusters have partitions of their own, the others share 500."""
    feed = MemoryFeed()
    index = await open_index(feed)
    placed = {cluster: feed.put(1, cluster, unit(cluster)) for cluster in range(1_100)}
    index.notify(1, DIM)
    await settled(index, 1)
    assert len(await partitions(index, 1)) == IndexSettings().partitions - 1
    for cluster in (0, 498, 499, 999, 1_099):
        assert await found(index, 1, [cluster], unit(cluster)) == [placed[cluster]]
    assert (await found(index, 1, None, unit(1_050)))[0] == placed[1_050]
    # Between own and shared partitions in both directions, and out of each.
    moved = {cluster: feed.move(1, placed[cluster], 1_099 - cluster) for cluster in (3, 4, 1_090, 1_091)}
    for cluster in (10, 1_000):
        feed.delete(1, placed[cluster])
    index.notify(1, DIM)
    await settled(index, 1)
    await index.stop()
    reads = feed.reads_of_placements
    again = await open_index(feed, IndexSettings(verify_share=1))
    again.notify(1, DIM)
    await settled(again, 1)
    for cluster, placement_id in moved.items():
        assert await found(again, 1, [cluster], unit(cluster)) == []
        assert (await found(again, 1, [1_099 - cluster], unit(cluster)))[0] == placement_id
    assert await found(again, 1, [10, 1_000], unit(10)) == []
    await checked(again, 1)
    await settled(again, 1)
    assert feed.reads_of_placements == reads, "it was rebuilt"
    assert await written_rows(again, 1) == 1_098


async def test_status_goes_from_starting_over_rebuilding_to_ready(open_index: OpenIndex) -> None:
    feed = MemoryFeed()
    for seed in range(600):
        feed.put(1, seed % 3, unit(seed))
    index = await open_index(feed)
    index.notify(1, DIM)
    assert index.status().state is IndexState.STARTING
    assert index.status().reason
    rebuilding = await reached(index, 1, IndexState.REBUILDING)
    assert (rebuilding.total, rebuilding.reason) == (600, "there is no record of the collection")
    await settled(index, 1)
    assert index.status().state is IndexState.READY
    assert index.status().reason == ""


async def test_a_row_that_is_written_again_is_there_once_and_as_it_was_written_last(
    open_on_either: OpenIndex,
) -> None:
    feed = MemoryFeed()
    kept, again = feed.put(1, 3, unit(1)), feed.put(1, 3, unit(2))
    index = await open_on_either(feed)
    index.notify(1, DIM)
    await settled(index, 1)
    session = index._backend.session
    assert session is not None
    (op,) = [op for op in await feed.current_placements(1, after=0, limit=10) if op.placement_id == again]
    for seed in (2, 7, 8):
        await index._backend.write(session.connection.upsert, 1, "c3", [replace(op, vector=unit(seed))])
        await index._backend.write(session.connection.flush, 1)
        assert await index._backend.read(session.connection.count, 1) == 2
    (hits,) = await index._backend.read(session.connection.search, 1, None, unit(8), 10)
    assert [hit.placement_id for hit in hits] == [again, kept]
    assert hits[0].score > 0.999
    await index._backend.write(session.connection.delete, 1, "c3", [again])
    await index._backend.write(session.connection.flush, 1)
    assert await index._backend.read(session.connection.count, 1) == 1
    (hits,) = await index._backend.read(session.connection.search, 1, None, unit(8), 10)
    assert [hit.placement_id for hit in hits] == [kept]
