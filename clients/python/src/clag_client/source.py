"""Reads the caller's items into a short queue, once for a whole ingestion, whatever happens to connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from clag.v1 import types_pb2

from clag_client.errors import SourceError
from clag_client.values import ItemLike, to_input

__all__ = ["Source", "SourceEnd"]

QUEUED_ITEMS: Final = 128
"""Two frames: one to send while the next is read."""

_SKIPPED_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True)
class SourceEnd:
    """The end of the items, and the failure that it was, if it was one."""

    failure: SourceError | None


class Source:
    """The items of an ingestion.

    Args:
        items: the caller's.

    Attributes:
        queue: the items as messages, then one `SourceEnd`.
    """

    def __init__(self, items: Iterable[ItemLike] | AsyncIterable[ItemLike]) -> None:
        self._items = items
        self.queue: asyncio.Queue[types_pb2.MemoryInput | SourceEnd] = asyncio.Queue(QUEUED_ITEMS)

    async def pump(self, *, skip: int) -> None:
        """Fill the queue to the end. A failure of the items becomes the end.

        Args:
            skip: number of items to leave out, because the server has them.
        """
        seq = 0
        end = SourceEnd(None)
        try:
            async with aclosing(_each(self._items)) as items:
                async for item in items:
                    seq += 1
                    if seq > skip:
                        await self.queue.put(_converted(seq, item))
                    elif seq % _SKIPPED_AT_ONCE == 0:
                        await asyncio.sleep(0)  # a long source that is read again must not hold the loop
        except SourceError as error:
            end = SourceEnd(error)
        except Exception as error:  # noqa: BLE001  # handed on: the items are the caller's and may raise anything
            failure = SourceError(seq + 1, str(error))
            failure.__cause__ = error
            end = SourceEnd(failure)
        await self.queue.put(end)


def _converted(seq: int, item: ItemLike) -> types_pb2.MemoryInput:
    try:
        return to_input(item)
    except (TypeError, ValueError) as error:
        raise SourceError(seq, str(error)) from error


async def _each(source: Iterable[ItemLike] | AsyncIterable[ItemLike]) -> AsyncGenerator[ItemLike, None]:
    if isinstance(source, AsyncIterable):
        async for item in source:
            yield item
    else:
        for item in source:
            yield item
