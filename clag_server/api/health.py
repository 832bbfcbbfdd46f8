"""Standard health (`grpc.health.v1`): the whole server as "", and each service by its full name.

Written here because the servicer that comes with gRPC writes to its watchers under a lock: one that does not read
would block the change of status, and with it the shutdown.
"""

# ruff: noqa: N802 - methods have the names of the contract

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import grpc
from grpc_health.v1 import health_pb2 as pb

from clag_server.api.interceptors.guard import Context

__all__ = ["OVERALL", "HealthServicer"]

OVERALL = ""
"""Name of the whole server."""


class HealthServicer:
    """Says which services serve; nothing serves until it is told so.

    Args:
        services: Full names of the services.
    """

    def __init__(self, services: Iterable[str]) -> None:
        self._serving = dict.fromkeys((OVERALL, *services), False)
        self._changed = asyncio.Event()
        self._final = False

    def set(self, service: str, *, serving: bool) -> None:
        """Change a status and tell its watchers; ignored after `shut_down`."""
        if not self._final and self._serving[service] != serving:
            self._serving[service] = serving
            self._announce()

    def shut_down(self) -> None:
        """Set everything to NOT_SERVING for good."""
        self._serving = dict.fromkeys(self._serving, False)
        self._final = True
        self._announce()

    async def Check(self, request: pb.HealthCheckRequest, context: Context) -> pb.HealthCheckResponse:
        """Answer once."""
        if request.service not in self._serving:
            await context.abort(grpc.StatusCode.NOT_FOUND, f'there is no service "{request.service}"')
        return pb.HealthCheckResponse(status=self._status(request.service))

    async def Watch(self, request: pb.HealthCheckRequest, context: Context) -> None:
        """Answer now and at every change; a slow reader skips the changes it missed. Ends with the server."""
        told: int | None = None
        while True:
            changed, final = self._changed, self._final
            status = self._status(request.service)
            if status != told:
                told = status
                await context.write(pb.HealthCheckResponse(status=status))
            elif final:
                return
            else:
                await changed.wait()

    async def List(self, _request: pb.HealthListRequest, _context: Context) -> pb.HealthListResponse:
        """Answer for all services."""
        return pb.HealthListResponse(
            statuses={name: pb.HealthCheckResponse(status=self._status(name)) for name in self._serving}
        )

    def _status(self, service: str) -> int:
        states = pb.HealthCheckResponse
        if service not in self._serving:
            return int(states.SERVICE_UNKNOWN)
        return int(states.SERVING if self._serving[service] else states.NOT_SERVING)

    def _announce(self) -> None:
        """Wake all watchers: each waits for the event of the state it last looked at."""
        self._changed.set()
        self._changed = asyncio.Event()
