"""What happens when the index process dies, its files are damaged, or it does not match the catalog."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from clag_server.catalog.api import IndexOp
from clag_server.vectors.api import IndexState
from clag_server.vectors.index import MilvusIndex
from clag_server.vectors.record import RecordFile
from clag_server.vectors.settings import IndexSettings
from tests.vectors.catalog_double import DIM, MemoryFeed, unit
from tests.vectors.conftest import OpenIndex
from tests.vectors.helpers import DEADLINE_S, child_pid, found, reached, settled, written_rows


async def test_searches_are_right_while_the_index_process_starts(open_index: OpenIndex) -> None:
    feed = MemoryFeed()
    placed = [feed.put(1, seed % 2, unit(seed)) for seed in range(50)]
    feed.delete(1, placed[9])
    index = await open_index(feed)
    index.notify(1, DIM)
    assert (await found(index, 1, [0], unit(4)))[0] == placed[4]
    assert await found(index, 1, [5], unit(4)) == []
    late = feed.put(1, 1, unit(99))
    index.notify(1, DIM)
    assert (await found(index, 1, [1], unit(99)))[0] == late
    assert placed[9] not in await found(index, 1, None, unit(9), limit=100)
    assert index.status().state is IndexState.STARTING


async def test_nothing_is_lost_or_doubled_when_the_index_process_is_killed_during_writes(
    open_index: OpenIndex,
) -> None:
    feed = MemoryFeed()
    small = IndexSettings(flush_rows=100, batch_rows=100, upsert_rows=20, first_retry_s=0.05)
    index = await open_index(feed, small)
    index.notify(1, DIM)
    await settled(index, 1)
    seed = 0
    for kill_after in (1, 3):
        placed = [feed.put(1, number % 6, unit(number)) for number in range(seed, seed + 600)]
        for number in range(0, 600, 10):
            feed.move(1, placed[number], 7)
        for number in range(5, 600, 10):
            feed.delete(1, placed[number])
        seed += 600
        left = feed.unacknowledged(1)
        index.notify(1, DIM)
        worker = index._namespaces[1].worker
        async with asyncio.timeout(DEADLINE_S):
            # A batch after the first ones is being written now.
            while feed.unacknowledged(1) > left - 100 * kill_after:
                await worker._changed.wait()
        assert feed.unacknowledged(1) > 0
        os.kill(child_pid(index), signal.SIGKILL)
        await reached(index, 1, IndexState.STARTING)
        assert set(await found(index, 1, None, unit(0), limit=2_000)) == feed.current_ids(1)
        await settled(index, 1)
        assert feed.unacknowledged(1) == 0
        assert await written_rows(index, 1) == len(feed.current_ids(1))
        everything = await found(index, 1, None, unit(0), limit=2_000)
        assert sorted(everything) == sorted(feed.current_ids(1))


async def test_a_hung_index_process_is_replaced_and_the_search_is_answered_from_the_catalog(
    open_index: OpenIndex,
) -> None:
    feed = MemoryFeed()
    index = await open_index(feed, IndexSettings(read_timeout_s=1, first_retry_s=0.05))
    placed = feed.put(1, 1, unit(1))
    index.notify(1, DIM)
    await settled(index, 1)
    hung = child_pid(index)
    os.kill(hung, signal.SIGSTOP)
    await asyncio.to_thread(os.waitid, os.P_PID, hung, os.WSTOPPED | os.WNOWAIT)
    async with asyncio.timeout(DEADLINE_S):
        assert await found(index, 1, [1], unit(1)) == [placed]
    await settled(index, 1)
    assert child_pid(index) != hung
    assert await found(index, 1, [1], unit(1)) == [placed]


async def test_an_intact_index_is_opened_without_a_rebuild_and_what_was_pending_is_written(
    open_on_either: OpenIndex,
) -> None:
    feed = MemoryFeed()
    index = await open_on_either(feed, IndexSettings(idle_s=3_600))
    feed.put(1, 1, unit(1))
    index.notify(1, DIM)
    await settled(index, 1)
    await index.stop()
    feed.put(1, 2, unit(2))
    again = await open_on_either(feed, IndexSettings(idle_s=3_600))
    again.notify(1, DIM)
    reads = feed.reads_of_placements
    await settled(again, 1)
    assert feed.reads_of_placements == reads, "it was rebuilt"
    assert set(await found(again, 1, None, unit(1))) == feed.current_ids(1)


async def test_what_is_pending_is_written_when_the_index_stops(open_on_either: OpenIndex) -> None:
    feed = MemoryFeed()
    index = await open_on_either(feed, IndexSettings(idle_s=3_600))
    index.notify(1, DIM)
    await settled(index, 1)
    feed.put(1, 1, unit(1))
    index.notify(1, DIM)
    await index.stop()
    assert feed.unacknowledged(1) == 0


async def test_a_removed_index_directory_is_rebuilt_from_the_catalog(open_index: OpenIndex, tmp_path: Path) -> None:
    feed = MemoryFeed()
    index = await _written(open_index, feed, 1)
    await index.stop()
    shutil.rmtree(tmp_path / "index")
    await _is_rebuilt(await open_index(feed), feed, 1)


async def test_collections_that_do_not_fit_the_catalog_are_rebuilt_and_the_others_are_not(
    open_index: OpenIndex, tmp_path: Path
) -> None:
    feed = MemoryFeed()
    intact, removed, torn, headless, behind, unrecorded = range(1, 7)
    index = await _written(open_index, feed, intact, removed, torn, headless, behind, unrecorded)
    await index.stop()
    collections = tmp_path / "index" / "lite" / "collections"
    shutil.rmtree(collections / f"clag_{removed}")
    files = sorted((collections / f"clag_{torn}").rglob("*.parquet"))
    assert files
    for path in files:
        path.write_bytes(path.read_bytes()[:50])
    (collections / f"clag_{headless}" / "schema.json").unlink()
    (tmp_path / "index" / f"ns_{unrecorded}.json").unlink()
    # As if the catalog had been told that the delete was applied.
    feed.delete(behind, min(feed.current_ids(behind)))
    await feed.ack_index_ops(behind, through=(await feed.index_head(behind))[0])
    again = await open_index(feed)
    for ns in (removed, torn, headless, behind, unrecorded):
        await _is_rebuilt(again, feed, ns)
    reads = feed.reads_of_placements
    again.notify(intact, DIM)
    await settled(again, intact)
    assert feed.reads_of_placements == reads, "the intact collection was rebuilt"
    assert set(await found(again, intact, None, unit(0), limit=1_000)) == feed.current_ids(intact)


class BusyFeed(MemoryFeed):
    """A catalog that commits more each time its placements are read, ten times in all."""

    def __init__(self) -> None:
        super().__init__()
        self.commits = 0

    async def current_placements(self, ns: int, *, after: int, limit: int) -> Sequence[IndexOp]:
        if self.commits < 10:
            self.commits += 1
            for number in range(40):
                self.put(ns, number % 3, unit(1_000 * self.commits + number))
        return await super().current_placements(ns, after=after, limit=limit)


async def test_a_rebuild_while_memories_come_in_needs_no_second_try(open_on_either: OpenIndex) -> None:
    feed = BusyFeed()
    for seed in range(64):
        feed.put(1, seed % 3, unit(seed))
    index = await open_on_either(feed, IndexSettings(page_rows=50))
    index.notify(1, DIM)
    worker = index._namespaces[1].worker
    async with asyncio.timeout(DEADLINE_S):
        status = await worker.wait_for(IndexState.READY, IndexState.DEGRADED)
    assert status.state is IndexState.READY, status.reason
    index.notify(1, DIM)
    await settled(index, 1)
    assert set(await found(index, 1, None, unit(3), limit=1_000)) == feed.current_ids(1)
    assert feed.commits == 10


async def test_an_index_ahead_of_a_restored_catalog_is_rebuilt(open_on_either: OpenIndex) -> None:
    feed = MemoryFeed()
    index = await _written(open_on_either, feed, 1)
    await index.stop()
    older = MemoryFeed(feed.catalog_id)
    older.put(1, 4, unit(7))
    await _is_rebuilt(await open_on_either(older), older, 1)


async def test_vectors_of_another_dimension_replace_the_collection(open_on_either: OpenIndex) -> None:
    feed = MemoryFeed()
    index = await _written(open_on_either, feed, 1)
    await index.stop()
    wider = MemoryFeed(feed.catalog_id)
    placed = [wider.put(1, seed % 3, unit(seed, dim=24)) for seed in range(200)]
    again = await open_on_either(wider)
    again.notify(1, 24)
    await settled(again, 1)
    assert (await found(again, 1, None, unit(5, dim=24)))[0] == placed[5]


async def test_a_storage_error_while_writing_is_reported_and_healed_by_a_rebuild(
    open_index: OpenIndex, tmp_path: Path
) -> None:
    feed = MemoryFeed()
    index = await _written(open_index, feed, 1)
    data = tmp_path / "index" / "lite" / "collections" / "clag_1"
    # Flushing needs to make folders where a file is now.
    shutil.rmtree(data / "partitions")
    (data / "partitions").write_bytes(b"")
    placed = feed.put(1, 50, unit(500))
    index.notify(1, DIM)
    broken = await reached(index, 1, IndexState.DEGRADED, IndexState.REBUILDING)
    assert broken.reason
    assert (await found(index, 1, [50], unit(500))) == [placed]
    await settled(index, 1)
    assert set(await found(index, 1, None, unit(0), limit=1_000)) == feed.current_ids(1)
    record = RecordFile(tmp_path / "index", 1).load()
    assert record is not None
    assert record.clean


async def test_a_namespace_dropped_while_the_index_process_is_away_is_gone_when_it_is_back(
    open_index: OpenIndex, tmp_path: Path
) -> None:
    feed = MemoryFeed()
    index = await _written(open_index, feed, 1)
    os.kill(child_pid(index), signal.SIGKILL)
    await reached(index, 1, IndexState.STARTING)
    await index.drop(1)
    async with asyncio.timeout(DEADLINE_S):
        await index._backend.wait_up()
        assert index._sweeping is not None
        await index._sweeping
    assert not (tmp_path / "index" / "lite" / "collections" / "clag_1").exists()
    assert not list((tmp_path / "index").glob("ns_*.json"))


async def test_the_index_process_is_gone_when_the_server_is_killed(tmp_path: Path) -> None:
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.vectors.index_parent", str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert server.stdout is not None
    async with asyncio.timeout(DEADLINE_S):
        child = psutil.Process(await _announced_pid(server.stdout))
    server.kill()
    await server.wait()
    gone, alive = await asyncio.to_thread(psutil.wait_procs, [child], timeout=DEADLINE_S)
    assert (len(gone), alive) == (1, [])


async def _announced_pid(output: asyncio.StreamReader) -> int:
    async for line in output:
        if line.startswith(b"child "):
            return int(line.split()[1])
    raise AssertionError("the server ended before its index was ready")


async def _written(open_index: OpenIndex, feed: MemoryFeed, *namespaces: int) -> MilvusIndex:
    index = await open_index(feed)
    for ns in namespaces:
        for seed in range(200):
            feed.put(ns, seed % 3, unit(seed))
        index.notify(ns, DIM)
    for ns in namespaces:
        await settled(index, ns)
        assert await written_rows(index, ns) == 200
    return index


async def _is_rebuilt(index: MilvusIndex, feed: MemoryFeed, ns: int) -> None:
    index.notify(ns, DIM)
    await reached(index, ns, IndexState.REBUILDING)
    assert set(await found(index, ns, None, unit(0), limit=1_000)) == feed.current_ids(ns)
    await settled(index, ns)
    assert await written_rows(index, ns) == len(feed.current_ids(ns))
    assert set(await found(index, ns, None, unit(0), limit=1_000)) == feed.current_ids(ns)
