"""Waiting for a transaction to its end, also when the caller is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def finished(write: Awaitable[T]) -> T:
    """Await a write that a cancellation does not undo; one that comes meanwhile is raised when the write has ended.

    So whoever holds a lock around it lets go, or reads again, only when it is known what was written.
    """
    task = asyncio.ensure_future(write)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
