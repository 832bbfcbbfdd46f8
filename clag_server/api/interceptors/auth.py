"""Who may call: anyone who reached the Unix socket (its permissions decide), and TCP callers with the token.

Health checks need no token: orchestrators cannot send one, and the answer holds nothing of the memories.
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from clag_server.api.errors import Unauthenticated
from clag_server.api.interceptors.guard import Call

__all__ = ["AuthGuard"]

_HEALTH = "/grpc.health.v1.Health/"
_SCHEME = "bearer "


class AuthGuard:
    """Checks the bearer token of TCP callers.

    Args:
        token: The token; None lets no TCP caller in.
    """

    def __init__(self, token: str | None) -> None:
        self._token = token

    @asynccontextmanager
    async def around(self, call: Call) -> AsyncIterator[None]:
        """Raise Unauthenticated before the handler runs."""
        if not call.context.peer().startswith("unix:") and not call.method.startswith(_HEALTH):
            self._check(call)
        yield

    def _check(self, call: Call) -> None:
        for key, value in call.context.invocation_metadata() or ():
            if key == "authorization" and isinstance(value, str) and value[: len(_SCHEME)].lower() == _SCHEME:
                given = value[len(_SCHEME) :].strip().encode("utf-8", "replace")
                if self._token is not None and hmac.compare_digest(given, self._token.encode("ascii")):
                    return
        raise Unauthenticated
