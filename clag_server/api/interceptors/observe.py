"""Request ids, one log line a call, and counters by method and status."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
import structlog

from clag_server.api.interceptors.guard import Call

__all__ = ["REQUEST_ID_KEY", "CallCounters", "ObserveGuard"]

_log = structlog.get_logger("clag.api")

REQUEST_ID_KEY = "x-request-id"
"""Metadata with which a caller names its call for the logs; anything but a short plain word is replaced."""

_PLAIN_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")


@dataclass(slots=True)
class CallCounters:
    """Finished calls since the start, by method and status name."""

    finished: Counter[tuple[str, str]] = field(default_factory=Counter)


class ObserveGuard:
    """Names, times, logs and counts every call.

    Args:
        counters: Where calls are counted.
    """

    def __init__(self, counters: CallCounters) -> None:
        self._counters = counters

    @asynccontextmanager
    async def around(self, call: Call) -> AsyncIterator[None]:
        """Bind the request id to the log lines of the call's task; log the end of the call."""
        started = time.perf_counter()
        code = "OK"
        structlog.contextvars.bind_contextvars(request_id=_request_id(call))
        try:
            yield
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED.name
            raise
        except BaseException:
            code = _status_name(call)
            raise
        finally:
            self._counters.finished[call.method, code] += 1
            _log.debug(
                "call ended", method=call.method, status=code, seconds=round(time.perf_counter() - started, 6)
            )


def _status_name(call: Call) -> str:
    code = call.context.code()
    return code.name if isinstance(code, grpc.StatusCode) else str(code or grpc.StatusCode.UNKNOWN.name)


def _request_id(call: Call) -> str:
    for key, value in call.context.invocation_metadata() or ():
        if key == REQUEST_ID_KEY and isinstance(value, str) and _PLAIN_ID.fullmatch(value):
            return value
    return secrets.token_hex(8)
