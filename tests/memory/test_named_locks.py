"""Locks by name."""

from __future__ import annotations

import asyncio

import pytest

from clag_server.memory.named_locks import NamedLocks


async def test_one_name_is_held_by_one_at_a_time_and_others_do_not_wait() -> None:
    locks = NamedLocks()
    order: list[str] = []
    release = asyncio.Event()

    async def hold(name: str, label: str) -> None:
        async with locks.hold(name):
            order.append(label)
            await release.wait()

    first = asyncio.create_task(hold("a", "a1"))
    second = asyncio.create_task(hold("a", "a2"))
    other = asyncio.create_task(hold("b", "b1"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert order == ["a1", "b1"]
    assert len(locks) == 2
    release.set()
    await asyncio.gather(first, second, other)
    assert order == ["a1", "b1", "a2"]
    assert len(locks) == 0


async def test_a_name_is_forgotten_when_a_waiter_gives_up_or_a_holder_fails() -> None:
    locks = NamedLocks()
    async with locks.hold("a"):
        waiting = asyncio.create_task(locks.hold("a").__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert len(locks) == 1
    assert len(locks) == 0
    with pytest.raises(RuntimeError):
        async with locks.hold("a"):
            raise RuntimeError
    assert len(locks) == 0
