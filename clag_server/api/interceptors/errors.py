"""Turns exceptions of handlers into statuses (`clag_server.api.errors`); cancellation always passes through.

So does what gRPC itself raises of a call that was ended, or whose caller left while a frame was written to it: no
status reaches such a caller, and leaving is no fault of the server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import grpc

from clag_server.api.errors import abort, failure_of, single
from clag_server.api.interceptors.guard import Call

__all__ = ["ErrorGuard"]

_ENDED: Final = (grpc.aio.AbortError, grpc.aio.InternalError)


class ErrorGuard:
    """Maps errors of the calls inside it."""

    @asynccontextmanager
    async def around(self, call: Call) -> AsyncIterator[None]:
        """End the call with the mapped status."""
        try:
            yield
        except _ENDED:
            raise
        except Exception as error:  # noqa: BLE001 - nothing is swallowed: it is logged and becomes the status
            cause = single(error) if isinstance(error, BaseExceptionGroup) else error
            if not isinstance(cause, Exception) or isinstance(cause, _ENDED):
                raise cause from None
            await abort(call.context, failure_of(cause))
