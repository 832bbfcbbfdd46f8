"""Turns exceptions of handlers into statuses (`clag_server.api.errors`); cancellation always passes through."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from clag_server.api.errors import abort, failure_of, single
from clag_server.api.interceptors.guard import Call

__all__ = ["ErrorGuard"]


class ErrorGuard:
    """Maps errors of the calls inside it."""

    @asynccontextmanager
    async def around(self, call: Call) -> AsyncIterator[None]:
        """End the call with the mapped status."""
        try:
            yield
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - nothing is swallowed: it is logged and becomes the status
            cause = single(error) if isinstance(error, BaseExceptionGroup) else error
            if not isinstance(cause, Exception) or isinstance(cause, grpc.aio.AbortError):
                raise cause from None
            await abort(call.context, failure_of(cause))
