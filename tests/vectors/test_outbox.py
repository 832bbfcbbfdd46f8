"""What one reader of the outbox has in hand, others wait for: no search misses it, no worker sleeps over it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from clag_server.catalog.api import IndexOp
from clag_server.vectors.outbox import Outbox
from clag_server.vectors.settings import IndexSettings
from tests.vectors.catalog_double import MemoryFeed, unit
from tests.vectors.conftest import OpenIndex
from tests.vectors.helpers import DEADLINE_S, settled, written, written_rows


class SlowFeed(MemoryFeed):
    """A catalog that reads when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.reading = asyncio.Event()

    async def read_index_ops(self, ns: int, *, after: int, limit: int) -> Sequence[IndexOp]:
        self.reading.set()
        await self.go_on.wait()
        return await super().read_index_ops(ns, after=after, limit=limit)


async def test_whoever_comes_while_another_reads_sees_what_that_one_reads() -> None:
    feed = SlowFeed()
    outbox = Outbox(1, feed, IndexSettings(), visible_after_s=0.0)
    feed.put(1, 0, unit(1))
    feed.go_on.clear()
    first = asyncio.create_task(outbox.refresh())
    await feed.reading.wait()
    second = asyncio.create_task(outbox.refresh())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not second.done()
    feed.go_on.set()
    await second
    assert outbox.backlog == 1
    await first


async def test_what_a_search_was_reading_when_the_worker_looked_is_written(open_index: OpenIndex) -> None:
    feed = SlowFeed()
    index = await open_index(feed, IndexSettings(idle_s=0.05, max_age_s=0.2))
    await written(index, feed, 1, rows=20)
    feed.go_on.clear()
    feed.reading.clear()
    feed.put(1, 0, unit(99))
    worker = index._namespaces[1].worker
    worker.outbox.news = True
    searching = asyncio.create_task(index.search(1, [0], unit(99), limit=1))
    await feed.reading.wait()
    worker._wake.set()  # the commit's notice reaches the worker while the search reads what it announced
    for _ in range(20):
        await asyncio.sleep(0.005)
    feed.go_on.set()
    hits = await searching
    assert hits.hits[0].score > 0.99
    async with asyncio.timeout(DEADLINE_S):
        while await written_rows(index, 1) < 21:  # noqa: ASYNC110 - Milvus tells nobody
            await asyncio.sleep(0.02)
    await settled(index, 1)
