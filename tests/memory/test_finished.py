"""A caller that goes away during a transaction learns of it only when the transaction has ended."""

from __future__ import annotations

import asyncio

import pytest

from clag_server.memory.finished import finished


async def test_a_cancelled_caller_leaves_when_the_write_has_ended() -> None:
    go_on = asyncio.Event()
    written: list[str] = []

    async def write() -> int:
        await go_on.wait()
        written.append("done")
        return 7

    async def caller() -> int:
        try:
            return await finished(write())
        finally:
            written.append("left")

    task = asyncio.create_task(caller())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert written == ["done", "left"]


async def test_a_result_or_an_error_is_passed_on() -> None:
    async def wrong() -> int:
        raise ValueError("no such cluster")

    async def right() -> int:
        return 7

    assert await finished(right()) == 7
    with pytest.raises(ValueError, match="no such cluster"):
        await finished(wrong())
