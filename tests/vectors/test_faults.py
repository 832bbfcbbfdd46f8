"""Faults that are made on purpose: deaths at chosen moments, a hang, a full disk. Nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from clag_server.vectors.api import IndexState
from clag_server.vectors.index import MilvusIndex
from clag_server.vectors.milvus import MilvusConnection
from clag_server.vectors.settings import IndexSettings
from tests.vectors.catalog_double import DIM, MemoryFeed, unit
from tests.vectors.conftest import OpenIndex
from tests.vectors.helpers import DEADLINE_S, checked, child_pid, found, reached, settled, written, written_rows


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_death_around_a_flush_neither_loses_nor_doubles_rows(
    open_index: OpenIndex, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    feed = MemoryFeed()
    index = await open_index(feed)
    await written(index, feed, 1)
    reads = feed.reads_of_placements
    _die_once(monkeypatch, index, moment)
    for placed in sorted(feed.current_ids(1))[:30]:
        feed.move(1, placed, 7)
    index.notify(1, DIM)
    await settled(index, 1)
    rebuilt = feed.reads_of_placements != reads
    if not rebuilt:
        await checked(index, 1)
        await settled(index, 1)
    assert await written_rows(index, 1) == 200
    assert sorted(await found(index, 1, None, unit(0), limit=1_000)) == sorted(feed.current_ids(1))
    # After a flush Milvus Lite goes on writing files of its own: one that the death tore costs a rebuild.
    assert moment == "after" or not rebuilt, "a batch that is written again needs no rebuild"


async def test_an_index_process_that_hangs_while_it_is_written_to_is_replaced(open_index: OpenIndex) -> None:
    feed = MemoryFeed()
    index = await open_index(feed, IndexSettings(write_timeout_s=3, first_retry_s=0.05))
    await written(index, feed, 1)
    hung = child_pid(index)
    os.kill(hung, signal.SIGSTOP)
    placed = feed.put(1, 9, unit(999))
    index.notify(1, DIM)
    worker = index._namespaces[1].worker
    worker._hurry = True
    await settled(index, 1)
    assert child_pid(index) != hung
    assert await found(index, 1, [9], unit(999)) == [placed]
    assert await written_rows(index, 1) == 201


async def test_a_full_disk_under_the_index_costs_no_memory_and_heals(open_index: OpenIndex) -> None:
    feed = MemoryFeed()
    index = await open_index(feed)
    await written(index, feed, 1)
    # No file of the index process may grow any more, which fails its writes as a full disk does.
    psutil.Process(child_pid(index)).rlimit(psutil.RLIMIT_FSIZE, (0, 0))
    placed = [feed.put(1, 9, unit(seed)) for seed in range(1_000, 1_040)]
    index.notify(1, DIM)
    broken = await reached(index, 1, IndexState.DEGRADED, IndexState.REBUILDING, IndexState.STARTING)
    assert broken.reason
    assert sorted(await found(index, 1, [9], unit(1_000), limit=100)) == placed
    await settled(index, 1)
    assert set(await found(index, 1, None, unit(0), limit=1_000)) == feed.current_ids(1)


async def test_the_whole_store_of_the_index_may_be_gone_while_its_records_are_still_there(
    open_index: OpenIndex, tmp_path: Path
) -> None:
    feed = MemoryFeed()
    index = await open_index(feed)
    await written(index, feed, 1)
    await index.stop()
    shutil.rmtree(tmp_path / "index" / "lite")
    again = await open_index(feed)
    again.notify(1, DIM)
    assert (await reached(again, 1, IndexState.REBUILDING)).reason == "the collection is missing"
    await settled(again, 1)
    assert set(await found(again, 1, None, unit(0), limit=1_000)) == feed.current_ids(1)


async def test_a_rebuild_that_is_killed_starts_over_cleanly(open_index: OpenIndex) -> None:
    feed = MemoryFeed()
    for seed in range(400):
        feed.put(1, seed % 3, unit(seed))
    index = await open_index(feed, IndexSettings(upsert_rows=10, first_retry_s=0.05))
    index.notify(1, DIM)
    worker = index._namespaces[1].worker
    async with asyncio.timeout(DEADLINE_S):
        while not 0 < worker.status.done < 400:
            await worker._changed.wait()
    os.kill(child_pid(index), signal.SIGKILL)
    await settled(index, 1)
    assert await written_rows(index, 1) == 400
    assert set(await found(index, 1, None, unit(0), limit=1_000)) == feed.current_ids(1)


async def test_a_namespace_that_is_dropped_during_searches_ends_them_with_an_answer(
    open_on_either: OpenIndex,
) -> None:
    feed = MemoryFeed()
    index = await open_on_either(feed)
    await written(index, feed, 1, 2)
    placed = feed.current_ids(1)
    searches = [asyncio.create_task(found(index, 1, None, unit(seed), limit=1_000)) for seed in range(20)]
    await searches[0]
    await index.drop(1)
    for answer in await asyncio.gather(*searches):
        assert set(answer) <= placed
    assert set(await found(index, 2, None, unit(0), limit=1_000)) == feed.current_ids(2)


def _die_once(monkeypatch: pytest.MonkeyPatch, index: MilvusIndex, moment: str) -> None:
    """Kill the index process right before or right after its next flush."""
    flush: Callable[[MilvusConnection, int], None] = MilvusConnection.flush
    victims = [child_pid(index)]

    def dying(connection: MilvusConnection, ns: int) -> None:
        if moment == "before" and victims:
            os.kill(victims.pop(), signal.SIGKILL)
        flush(connection, ns)
        if moment == "after" and victims:
            os.kill(victims.pop(), signal.SIGKILL)

    monkeypatch.setattr(MilvusConnection, "flush", dying)
