"""Accesses are counted many at a time, behind the answers; what cannot be written is not waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from clag_server.memory.accesses import AccessCounts
from clag_server.types.errors import StorageFailed
from clag_server.types.retrieval import RetrieveQuery
from tests.memory.system import NAMESPACE, get, remember, system_on


class Book:
    """Takes note of what is written; fails where it is told to."""

    def __init__(self, failing: int = -1) -> None:
        self.written: list[tuple[int, list[int]]] = []
        self.failing = failing

    async def touch(self, ns: int, keys: Sequence[int], *, now_ns: int) -> None:
        if ns == self.failing:
            raise StorageFailed("the disk is full")
        self.written.append((ns, list(keys)))


async def test_what_comes_within_a_pause_is_written_together_and_again_what_comes_later() -> None:
    book = Book()
    counts = AccessCounts(book, now_ns=lambda: 5, pause_s=0.01)
    for keys in ([1, 2], [2, 3]):
        counts.add(7, keys)
    counts.add(8, [9])
    async with asyncio.timeout(10):
        while len(book.written) < 2:  # noqa: ASYNC110 - the book tells nobody
            await asyncio.sleep(0.005)
        counts.add(7, [4])
        while len(book.written) < 3:  # noqa: ASYNC110 - the book tells nobody
            await asyncio.sleep(0.005)
    assert sorted(book.written[:2]) == [(7, [1, 2, 2, 3]), (8, [9])]
    assert book.written[2] == (7, [4])


async def test_a_stop_writes_what_is_left_and_a_failure_costs_its_own_namespace_alone() -> None:
    book = Book(failing=1)
    counts = AccessCounts(book, now_ns=lambda: 5, pause_s=60)
    counts.add(1, [1])
    counts.add(2, [2])
    await counts.stop()
    assert book.written == [(2, [2])]


async def test_memory_for_accesses_is_bounded() -> None:
    book = Book()
    counts = AccessCounts(book, now_ns=lambda: 5, pause_s=60)
    for first in range(0, 30_000, 10):
        counts.add(1, range(first, first + 10))
    await counts.stop()
    assert len(book.written[0][1]) == 10_000


async def test_an_answer_counts_as_an_access_of_each_memory_that_it_returned(tmp_path: Path) -> None:
    async with system_on(tmp_path) as system:
        await remember(system, ["the dock is near the gate", "a lamp flickers"])
        for _ in range(3):
            async for _ in system.retrieve(RetrieveQuery(NAMESPACE, "where is the dock", max_memories=1)):
                pass
    async with system_on(tmp_path) as system:
        assert (await get(system, "m0")).access_count == 3
        assert (await get(system, "m1")).access_count == 0
