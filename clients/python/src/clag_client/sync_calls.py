"""Any call of the contract from programs without an event loop; part of `Client`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from clag_client.calls import StreamMethod, UnaryMethod
from clag_client.in_thread import in_thread

if TYPE_CHECKING:
    from clag.v1.admin_service_pb2_grpc import AdminServiceAsyncStub  # these exist for type checkers only
    from clag.v1.cluster_service_pb2_grpc import ClusterServiceAsyncStub
    from clag.v1.memory_service_pb2_grpc import MemoryServiceAsyncStub

    from clag_client.aio import AsyncClient
    from clag_client.loop import Iteration, Loop

__all__ = ["SyncCalls"]

T = TypeVar("T")


class SyncCalls:
    """Methods of `Client`, as those of `UnaryCalls`. The stubs name the methods for `call` and `call_stream`."""

    _client: AsyncClient
    _loop: Loop

    @property
    def memory(self) -> MemoryServiceAsyncStub:
        """Methods of MemoryService."""
        return self._client.memory

    @property
    def clusters(self) -> ClusterServiceAsyncStub:
        """Methods of ClusterService."""
        return self._client.clusters

    @property
    def admin(self) -> AdminServiceAsyncStub:
        """Methods of AdminService."""
        return self._client.admin

    def call(self, method: UnaryMethod[T], request: object, *, timeout_s: float | None = None) -> T:
        """Make a call that has no method of its own here: `client.call(client.memory.UpdateMemory, request)`."""
        return self._loop.run(self._client.call(method, request, timeout_s=timeout_s))

    def call_future(self, method: UnaryMethod[T], request: object, *, timeout_s: float | None = None) -> Future[T]:
        """Begin such a call and go on. Cancelling the future cancels the call."""
        return self._loop.start(self._client.call(method, request, timeout_s=timeout_s))

    @contextmanager
    def call_stream(
        self,
        method: StreamMethod[T],
        request: object | Iterable[object],
        *,
        timeout_s: float | None = None,
    ) -> Iterator[Iteration[T]]:
        """Make a call with many answers that has no method of its own here. Leaving the context cancels it.

        An iterable of requests is read in another thread, so reading may wait.
        """
        asked = in_thread(iter(request)) if isinstance(request, Iterable) else request
        with self._loop.entered(self._client.call_stream(method, asked, timeout_s=timeout_s)) as answers:
            yield self._loop.iterate(answers)
