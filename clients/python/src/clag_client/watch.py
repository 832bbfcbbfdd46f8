"""Watching a namespace, over reconnects."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

import grpc
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2

from clag_client.closing import closing_told
from clag_client.errors import ClagError, from_rpc
from clag_client.retry import Outage

if TYPE_CHECKING:
    from clag.v1.memory_service_pb2_grpc import MemoryServiceAsyncStub  # exists for type checkers only

__all__ = ["watch_responses"]


async def watch_responses(
    stub: MemoryServiceAsyncStub,
    namespace: str,
    *,
    start_after: types_pb2.Revision | None,
    kinds: Sequence[pb.ChangeKind.ValueType],
    include_values: bool,
    metadata: tuple[tuple[str, str], ...],
    outage: Outage,
) -> AsyncGenerator[pb.WatchResponse, None]:
    """Yield responses; a broken connection is opened again after the last of them, so nothing is missed or doubled.

    Raises:
        ClagError: if the watch cannot go on, e.g. because the log no longer reaches back that far.
    """
    request = pb.WatchRequest(
        namespace=namespace, start_after=start_after, kinds=kinds, include_values=include_values
    )
    ever = False
    while True:
        forward = False
        call = stub.Watch(request, metadata=metadata)
        try:
            with closing_told():
                async for response in call:
                    if not forward:
                        outage.connected()
                    forward = ever = True
                    # Set before it is handed out: whoever stops here has seen it.
                    request.start_after.CopyFrom(response.through)
                    yield response
            error = ClagError(grpc.StatusCode.UNAVAILABLE, "the server ended the watch")
        except grpc.aio.AioRpcError as failed:
            error = from_rpc(failed)
            if not ever and error.retry_after_s is None:
                raise error from None  # it was never there
        finally:
            call.cancel()
        await outage.wait(error, forward=forward)
