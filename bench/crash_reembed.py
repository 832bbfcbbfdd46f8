"""A server that comes back with another embedder, and is asked to embed everything again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from clag.v1 import admin_service_pb2 as admin_pb
from clag_client import AsyncClient

from bench.crash_texts import NAMESPACE
from bench.store_support import START_S, StoreServer

_DIMS: Final = {64: 48, 48: 64}
_POLL_S: Final = 0.05


async def operations_ended(client: AsyncClient) -> None:
    """Wait until no operation is at work: what runs for one embedder cannot go on with another."""
    ended = (
        admin_pb.OPERATION_STATE_SUCCEEDED,
        admin_pb.OPERATION_STATE_FAILED,
        admin_pb.OPERATION_STATE_CANCELLED,
    )
    async with asyncio.timeout(START_S):
        while True:
            listed = await client.admin.ListOperations(
                admin_pb.ListOperationsRequest(namespace=NAMESPACE, page_size=100), timeout=10
            )
            if all(one.state in ended for one in listed.operations):
                return
            await asyncio.sleep(_POLL_S)


def with_other_embedder(server: StoreServer) -> None:
    """Have the next start use a model of another dimension."""
    server.knobs = replace(server.knobs, dim=_DIMS[server.knobs.dim])


async def embed_again(client: AsyncClient) -> None:
    """Ask for it; the answer means that the operation is on disk."""
    info = await client.server_info()
    await client.admin.Reindex(
        admin_pb.ReindexRequest(namespace=NAMESPACE, embedding_model=info.embedder.name), timeout=20
    )
