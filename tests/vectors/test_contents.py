"""An index that holds other rows than the catalog placed is noticed, whatever the numbers of rows say."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from clag_server.vectors.api import IndexState
from clag_server.vectors.settings import IndexSettings
from tests.vectors.catalog_double import DIM, MemoryFeed, unit
from tests.vectors.conftest import OpenIndex
from tests.vectors.helpers import checked, found, reached, settled, written, written_rows


async def test_a_collection_replaced_by_an_older_copy_of_itself_is_noticed_and_rebuilt(
    open_index: OpenIndex, tmp_path: Path
) -> None:
    feed = MemoryFeed()
    index = await open_index(feed)
    await written(index, feed, 1)
    await index.stop()
    collection = tmp_path / "index" / "lite" / "collections" / "clag_1"
    shutil.copytree(collection, tmp_path / "older")
    index = await open_index(feed)
    for placed in sorted(feed.current_ids(1))[:60:3]:
        feed.move(1, placed, 1)  # from cluster 0: as many rows as before
    index.notify(1, DIM)
    await settled(index, 1)
    await index.stop()
    shutil.rmtree(collection)
    shutil.copytree(tmp_path / "older", collection)
    again = await open_index(feed)
    again.notify(1, DIM)
    rebuilding = await reached(again, 1, IndexState.REBUILDING)
    assert rebuilding.reason == "the collection does not hold what the catalog placed (c0, c1)"
    assert set(await found(again, 1, None, unit(0), limit=1_000)) == feed.current_ids(1)
    await settled(again, 1)
    for cluster in range(3):
        placed_there = {row for row in feed.current_ids(1) if feed.cluster_of(1, row) == cluster}
        assert set(await found(again, 1, [cluster], unit(0), limit=1_000)) == placed_there


async def test_a_catalog_that_went_another_way_since_a_backup_gets_an_index_of_its_own(
    open_on_either: OpenIndex,
) -> None:
    feed = MemoryFeed()
    index = await open_on_either(feed)
    await written(index, feed, 1)
    await index.stop()
    restored = MemoryFeed(feed.catalog_id)
    for seed in range(200):
        restored.put(1, seed % 4, unit(seed))  # the same numbers of steps and of rows
    again = await open_on_either(restored)
    again.notify(1, DIM)
    rebuilding = await reached(again, 1, IndexState.REBUILDING)
    assert rebuilding.reason == "the record of the collection does not fit the catalog"
    await settled(again, 1)
    assert len(await found(again, 1, [3], unit(0), limit=100)) == 50


async def test_an_intact_collection_is_read_through_in_pieces_while_memories_come_move_and_go(
    open_on_either: OpenIndex,
) -> None:
    feed = MemoryFeed()
    settings = IndexSettings(verify_rows=16, verify_share=0.5, first_retry_s=0.05)
    index = await open_on_either(feed, settings)
    await written(index, feed, 1)
    await index.stop()
    again = await open_on_either(feed, settings)
    again.notify(1, DIM)
    await reached(again, 1, IndexState.READY)
    for seed in range(200, 230):
        feed.put(1, seed % 4, unit(seed))
        feed.move(1, min(feed.current_ids(1)), 5)
        feed.delete(1, max(feed.current_ids(1) - {max(feed.current_ids(1))}))
        again.notify(1, DIM)
        await settled(again, 1)
    reads = feed.reads_of_placements
    await checked(again, 1)
    await settled(again, 1)
    assert feed.reads_of_placements == reads, "something was thought to be wrong"
    assert await written_rows(again, 1) == len(feed.current_ids(1))


async def test_a_placement_that_is_gone_before_its_turn_is_never_written_nor_missed(
    open_on_either: OpenIndex,
) -> None:
    feed = MemoryFeed()
    index = await open_on_either(feed, IndexSettings(flush_rows=1, first_retry_s=0.05))
    await written(index, feed, 1, rows=3)
    reads = feed.reads_of_placements
    # Each step is a batch of its own, so the DELETE of a placement comes in a later one than its PUT.
    last = feed.move(1, feed.move(1, feed.put(1, 1, unit(9)), 2), 4)
    index.notify(1, DIM)
    await settled(index, 1)
    assert await found(index, 1, None, unit(9), limit=1) == [last]
    await index.stop()
    again = await open_on_either(feed)
    again.notify(1, DIM)
    await settled(again, 1)
    await checked(again, 1)
    await settled(again, 1)
    assert feed.reads_of_placements == reads, "it was rebuilt"


async def test_the_record_follows_the_catalog_through_any_order_of_steps_batches_and_openings(
    open_index: OpenIndex,
) -> None:
    feed, dice = MemoryFeed(), random.Random(7)  # noqa: S311 - the same steps in every run
    index = await open_index(feed)
    await written(index, feed, 1, rows=20)
    await index.stop()
    reads = feed.reads_of_placements
    for _ in range(3):
        index = await open_index(feed, IndexSettings(flush_rows=dice.randint(1, 9), verify_rows=3))
        index.notify(1, DIM)
        for step in range(40):
            placed = dice.choice(sorted(feed.current_ids(1)))
            match dice.randrange(4):
                case 0:
                    feed.delete(1, placed)
                case 1:
                    feed.move(1, placed, dice.randrange(5))
                case _:
                    feed.put(1, dice.randrange(5), unit(step))
            if dice.random() < 0.3:
                index.notify(1, DIM)
            if dice.random() < 0.1:
                await settled(index, 1)
        index.notify(1, DIM)
        await settled(index, 1)
        await checked(index, 1)
        await settled(index, 1)
        await index.stop()
    assert feed.reads_of_placements == reads, "it was rebuilt"
