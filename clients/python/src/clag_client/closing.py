"""What a call says whose client is closed while it runs.

grpc.aio raises CancelledError in whoever waits for a call of a channel that is closed. To asyncio that is a task
which was cancelled and ends in silence: here it becomes an error, and only the caller's own cancellation stays one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from clag_client.errors import ClagError

__all__ = ["closing_told"]


@contextmanager
def closing_told() -> Iterator[None]:
    """Turn the CancelledError of a closed channel into a ClagError with the code CANCELLED."""
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise ClagError(grpc.StatusCode.CANCELLED, "the client was closed while the call ran") from None
