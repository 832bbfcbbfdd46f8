"""Calls that may stay open for hours: what ends them from our side."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from clag_server.api.interceptors.drain import DrainGate
from clag_server.types.errors import Draining

__all__ = ["until_drained"]


async def until_drained(gate: DrainGate, work: Coroutine[Any, Any, None]) -> None:
    """Run the work of a call to its end, or until the server drains, even while it waits for a slow reader.

    Raises:
        Draining: the server drains; the work was cancelled.
    """
    working = asyncio.create_task(work)
    draining = asyncio.create_task(gate.drained())
    try:
        await asyncio.wait((working, draining), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Draining
        await working
    finally:
        working.cancel()
        draining.cancel()
        await asyncio.gather(working, draining, return_exceptions=True)
