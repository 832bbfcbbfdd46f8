"""Closing an iterator at a known moment: an abandoned generator's clean-up waits for the garbage collector else."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

T = TypeVar("T")


@asynccontextmanager
async def closed_after(items: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Close an iterator, where it is a generator, when the block ends."""
    try:
        yield items
    finally:
        if isinstance(items, AsyncGenerator):
            await items.aclose()
