"""Watching: everything in order and once, one reader of the log for many watchers, one page for a slow one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clag_server.memory.change_tail import KEPT_PAGES, OWN_PAGE_ROWS, PAGE_ROWS, ChangeTail
from clag_server.types.change import Change, ChangeBatch, ChangeKind
from clag_server.types.errors import LogCompacted


class MemoryLog:
    """A change log in memory: revision n is change n, of namespace 1 or 2 in turn."""

    def __init__(self) -> None:
        self.changes_made: list[Change] = []
        self.listeners: list[Callable[[], None]] = []
        self.oldest = 0
        self.reads = 0

    def add(self, count: int = 1) -> None:
        for _ in range(count):
            number = len(self.changes_made) + 1
            self.changes_made.append(
                Change(number, 1 + number % 2, ChangeKind.MEMORY_CREATED, 0, key=number, memory_id=f"m{number}")
            )
        for listener in list(self.listeners):
            listener()

    def on_commit(self, listener: Callable[[], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    async def changes(self, *, after: int, limit: int) -> ChangeBatch:
        self.reads += 1
        await asyncio.sleep(0)
        if after < self.oldest:
            raise LogCompacted(asked=after, oldest=self.oldest)
        found = self.changes_made[after : after + limit]
        return ChangeBatch(found, found[-1].revision if found else len(self.changes_made))


async def collect(tail: ChangeTail, position: int, through: int) -> list[int]:
    seen: list[int] = []
    while position < through:
        batch = await tail.after(position)
        assert batch.through > position
        seen += [change.revision for change in batch.changes]
        position = batch.through
    return seen


async def test_every_watcher_sees_every_change_once_and_in_order_wherever_it_began() -> None:
    log = MemoryLog()
    log.add(3 * PAGE_ROWS)
    tail = ChangeTail(log)
    await tail.start()
    total = 5 * PAGE_ROWS
    starts = [0, 5, PAGE_ROWS, 3 * PAGE_ROWS, 3 * PAGE_ROWS]
    watchers = [asyncio.create_task(collect(tail, start, total)) for start in starts]
    for _ in range(20):
        await asyncio.sleep(0)
        log.add(PAGE_ROWS // 10)
    log.add(total - len(log.changes_made))
    async with asyncio.timeout(20):
        results = await asyncio.gather(*watchers)
    await tail.stop()
    for start, seen in zip(starts, results, strict=True):
        assert seen[: total - start] == list(range(start + 1, total + 1))


async def test_a_hundred_watchers_at_the_end_read_the_log_once() -> None:
    log = MemoryLog()
    tail = ChangeTail(log)
    await tail.start()
    rounds = 30

    async def follow() -> int:
        position = 0
        for _ in range(rounds):
            position = (await tail.after(position)).through
        return position

    watchers = [asyncio.create_task(follow()) for _ in range(100)]
    async with asyncio.timeout(20):
        while not all(watcher.done() for watcher in watchers):
            for _ in range(5):
                await asyncio.sleep(0)
            log.add()
        await asyncio.gather(*watchers)
    await tail.stop()
    assert tail.shared_reads <= len(log.changes_made)
    assert log.reads < 3 * len(log.changes_made)  # not a hundred times as many


async def test_a_late_watcher_gets_small_pages_of_its_own() -> None:
    log = MemoryLog()
    log.add((KEPT_PAGES + 2) * PAGE_ROWS)
    tail = ChangeTail(log)
    await tail.start()
    leading = asyncio.create_task(tail.after(len(log.changes_made)))
    await asyncio.sleep(0)
    batch = await tail.after(0)
    assert len(batch.changes) == OWN_PAGE_ROWS
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)
    await tail.stop()


async def test_nobody_reads_the_log_while_nobody_watches() -> None:
    log = MemoryLog()
    tail = ChangeTail(log)
    await tail.start()
    for _ in range(10):
        log.add()
        await asyncio.sleep(0)
    await tail.stop()
    assert log.reads == 0
    assert log.listeners == []


async def test_a_watcher_before_the_oldest_change_is_told_how_far_the_log_reaches() -> None:
    log = MemoryLog()
    log.add(100)
    log.oldest = 40
    tail = ChangeTail(log)
    await tail.start()
    ahead = asyncio.create_task(tail.after(100))
    await asyncio.sleep(0)
    with pytest.raises(LogCompacted) as told:
        await tail.after(10)
    assert told.value.oldest == 40
    ahead.cancel()
    await asyncio.gather(ahead, return_exceptions=True)
    await tail.stop()


@settings(max_examples=30, deadline=None)
@given(steps=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 700)), min_size=1, max_size=12))
def test_whatever_the_paces_nothing_is_missed_or_doubled(steps: list[tuple[int, int]]) -> None:
    """Three watchers read one batch each when it is their turn, between writes of any size."""

    async def play() -> None:
        log = MemoryLog()
        log.add()
        tail = ChangeTail(log)
        await tail.start()
        positions = [0, 0, 1]
        seen: list[list[int]] = [[], [], []]
        for who, written in steps:
            if written:
                log.add(written)
            if positions[who] < len(log.changes_made):
                async with asyncio.timeout(10):
                    batch = await tail.after(positions[who])
                seen[who] += [change.revision for change in batch.changes]
                positions[who] = batch.through
        await tail.stop()
        for first, position, revisions in zip((1, 1, 2), positions, seen, strict=True):
            assert revisions == list(range(first, position + 1))

    asyncio.run(play())


async def test_an_abandoned_wait_leaves_nothing_behind() -> None:
    log = MemoryLog()
    tail = ChangeTail(log)
    await tail.start()

    async def watch() -> AsyncGenerator[ChangeBatch, None]:
        position = 0
        while True:
            batch = await tail.after(position)
            position = batch.through
            yield batch

    for _ in range(100):
        async with aclosing(watch()) as batches:
            waiting = asyncio.ensure_future(anext(batches))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
    log.add()
    await asyncio.sleep(0)
    await tail.stop()
    assert tail._waiting == 0
