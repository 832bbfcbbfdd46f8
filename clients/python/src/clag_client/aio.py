"""The asynchronous client."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Final, Self, TypeVar, Unpack

import grpc
from clag.v1 import admin_service_pb2 as admin_pb
from clag.v1 import memory_service_pb2 as memory_pb
from clag.v1 import types_pb2
from clag.v1.admin_service_pb2_grpc import AdminServiceStub
from clag.v1.cluster_service_pb2_grpc import ClusterServiceStub
from clag.v1.memory_service_pb2_grpc import MemoryServiceStub

from clag_client.answers import AsyncAnswerCalls
from clag_client.closing import closing_told
from clag_client.clusters import AsyncClusterCalls
from clag_client.connect import Tls, channel_to, metadata_for
from clag_client.errors import from_rpc
from clag_client.ingestion import Ingestion
from clag_client.retry import Outage, RetryPolicy
from clag_client.transfer import ImportProgress, export_responses, import_records
from clag_client.values import ItemLike, RetrieveOptions, retrieve_request, to_input
from clag_client.watch import watch_responses

__all__ = ["AsyncClient"]

DEFAULT_TIMEOUT_S: Final = 30.0
"""Deadline of a unary call and of a retrieval; the server cuts longer ones to its own maximum."""

T = TypeVar("T")


class AsyncClient(AsyncClusterCalls, AsyncAnswerCalls):
    """A connection to a CLAG server; use as an async context manager.

    Every method raises `ClagError` when the call fails. For calls that have no method here there are `call` and
    `call_stream`, which take a method of the generated stubs `memory`, `clusters` and `admin`.

    Args:
        target: "unix:PATH", a path that begins with "/", or "host:port".
        token: bearer token; TCP servers ask for one.
        tls: None speaks plain text (Unix sockets, loopback).
        timeout_s: deadline of calls that are given none, in seconds.
        retry: how broken ingest streams are resumed.
        keepalive_s: seconds between pings on a quiet connection; None for none.

    Raises:
        ValueError: if the target is empty, or a token would cross a network in plain text.
    """

    def __init__(
        self,
        target: str,
        *,
        token: str = "",
        tls: Tls | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retry: RetryPolicy | None = None,
        keepalive_s: float | None = None,
    ) -> None:
        self.metadata = metadata_for(token, target=target, tls=tls)
        self._channel = channel_to(target, tls=tls, keepalive_s=keepalive_s)
        self._timeout_s = timeout_s
        self._retry = retry or RetryPolicy()
        self.memory = MemoryServiceStub(self._channel)
        self.clusters = ClusterServiceStub(self._channel)
        self.admin = AdminServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel what is running and close the connection."""
        await self._channel.close()

    def ingest(
        self,
        namespace: str,
        items: Iterable[ItemLike] | AsyncIterable[ItemLike],
        *,
        stream_id: str = "",
        ack_level: memory_pb.AckLevel.ValueType = memory_pb.ACK_LEVEL_DURABLE,
        stages: memory_pb.IngestStages.ValueType = memory_pb.INGEST_STAGES_ALL,
        timeout_s: float | None = None,
    ) -> Ingestion:
        """Stream memories in; see `Ingestion`.

        Args:
            namespace: where they go; created if the server allows it.
            items: read as fast as the server takes them. A blocking iterable blocks the event loop: give an async
                one where reading waits.
            stream_id: names the stream. With the same id and the same items again, the server's position is found
                and only the rest is sent. Empty makes a new one, which survives reconnects and not this process.
            ack_level: when an item counts as done.
            stages: how much work the server does for the items.
            timeout_s: deadline of the whole stream, reconnects included, in seconds; None for none.
        """
        opening = memory_pb.IngestOpen(
            namespace=namespace, stream_id=stream_id or uuid.uuid4().hex, ack_level=ack_level, stages=stages
        )
        return Ingestion(
            self.memory,
            items,
            opening,
            metadata=self.metadata,
            outage=Outage(self._retry),
            timeout_s=timeout_s,
        )

    @asynccontextmanager
    async def retrieve(
        self,
        namespace: str,
        query: str | Sequence[float],
        *,
        timeout_s: float | None = None,
        **options: Unpack[RetrieveOptions],
    ) -> AsyncIterator[AsyncIterator[memory_pb.RetrieveResponse]]:
        """Retrieve in stages. Leaving the context early cancels the call.

        Yields:
            An iterator of stages: clusters, memories, the context if a budget was given, done.
        """
        request = retrieve_request(namespace, query, options)
        call = self.memory.Retrieve(request, timeout=timeout_s or self._timeout_s, metadata=self.metadata)
        try:
            yield _stages(call)
        finally:
            call.cancel()

    async def get_context(
        self,
        namespace: str,
        query: str | Sequence[float],
        *,
        timeout_s: float | None = None,
        **options: Unpack[RetrieveOptions],
    ) -> memory_pb.GetContextResponse:
        """Retrieve everything in one response."""
        request = memory_pb.GetContextRequest(retrieve=retrieve_request(namespace, query, options))
        return await self._unary(self.memory.GetContext, request, timeout_s)

    async def create_memory(
        self,
        namespace: str,
        item: ItemLike,
        *,
        request_id: str = "",
        ack_level: memory_pb.AckLevel.ValueType = memory_pb.ACK_LEVEL_DURABLE,
        timeout_s: float | None = None,
    ) -> memory_pb.CreateMemoryResponse:
        """Store one memory and wait until it has reached `ack_level`."""
        request = memory_pb.CreateMemoryRequest(
            namespace=namespace, memory=to_input(item), request_id=request_id, ack_level=ack_level
        )
        return await self._unary(self.memory.CreateMemory, request, timeout_s)

    async def get_memory(
        self,
        namespace: str,
        memory_id: str,
        *,
        include_embedding: bool = False,
        at_least_as_fresh: types_pb2.Revision | None = None,
        timeout_s: float | None = None,
    ) -> types_pb2.Memory:
        """Read one memory."""
        request = memory_pb.GetMemoryRequest(
            namespace=namespace,
            memory_id=memory_id,
            include_embedding=include_embedding,
            read=_read_options(at_least_as_fresh),
        )
        return (await self._unary(self.memory.GetMemory, request, timeout_s)).memory

    async def list_memories(
        self,
        namespace: str,
        *,
        filter: types_pb2.Filter | None = None,  # noqa: A002  # named as in the contract
        page_size: int = 0,
        include_embeddings: bool = False,
        at_least_as_fresh: types_pb2.Revision | None = None,
    ) -> AsyncIterator[types_pb2.Memory]:
        """Yield all memories that match, page by page, in order of arrival."""
        request = memory_pb.ListMemoriesRequest(
            namespace=namespace,
            filter=filter,
            page_size=page_size,
            include_embeddings=include_embeddings,
            read=_read_options(at_least_as_fresh),
        )
        while True:
            page = await self._unary(self.memory.ListMemories, request, None)
            for memory in page.memories:
                yield memory
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def delete_memory(
        self,
        namespace: str,
        memory_id: str,
        *,
        etag: str = "",
        allow_missing: bool = False,
        timeout_s: float | None = None,
    ) -> memory_pb.DeleteMemoryResponse:
        """Delete one memory everywhere."""
        request = memory_pb.DeleteMemoryRequest(
            namespace=namespace, memory_id=memory_id, etag=etag, allow_missing=allow_missing
        )
        return await self._unary(self.memory.DeleteMemory, request, timeout_s)

    def watch(
        self,
        namespace: str,
        *,
        start_after: types_pb2.Revision | None = None,
        kinds: Sequence[memory_pb.ChangeKind.ValueType] = (),
        include_values: bool = False,
    ) -> AsyncGenerator[memory_pb.WatchResponse, None]:
        """Yield changes as they happen, over reconnects; close the iterator (`contextlib.aclosing`) to stop.

        Args:
            namespace: what to watch.
            start_after: `through` of a response seen before; None begins now.
            kinds: which changes; all when empty.
            include_values: whether changes carry the memory or cluster as it is then.
        """
        return watch_responses(
            self.memory,
            namespace,
            start_after=start_after,
            kinds=kinds,
            include_values=include_values,
            metadata=self.metadata,
            outage=Outage(self._retry),
        )

    def export(
        self,
        namespace: str,
        *,
        cursor: str = "",
        include_embeddings: bool = False,
        filter: types_pb2.Filter | None = None,  # noqa: A002  # named as in the contract
    ) -> AsyncGenerator[admin_pb.ExportResponse, None]:
        """Yield batches of rows of one moment, over reconnects; close the iterator to stop early.

        Args:
            namespace: what to export.
            cursor: of the last batch received, to go on there; empty starts a new snapshot.
            include_embeddings: whether memories carry their embeddings.
            filter: which memories; all when None.
        """
        return export_responses(
            self.admin,
            namespace,
            cursor=cursor,
            include_embeddings=include_embeddings,
            filter=filter,
            metadata=self.metadata,
            outage=Outage(self._retry),
        )

    async def import_records(
        self,
        namespace: str,
        records: Iterable[admin_pb.ExportRecord] | AsyncIterable[admin_pb.ExportRecord],
        *,
        stream_id: str = "",
        on_conflict: admin_pb.ImportConflict.ValueType = admin_pb.IMPORT_CONFLICT_KEEP,
        keep_organization: bool = False,
        on_progress: ImportProgress = lambda _through, _rejections: None,
    ) -> admin_pb.ImportFinished:
        """Load exported rows, over reconnects, and return the server's counts, those of earlier runs included.

        Without a single row nothing is sent, and no namespace made.

        Args:
            namespace: where they go; created if the server allows it.
            records: rows in the order of their export; read as fast as the server takes them.
            stream_id: names the import. With the same id and the same rows again it goes on where it was.
            on_conflict: what happens to rows whose ids are there.
            keep_organization: whether clusters and annotations are taken over.
            on_progress: hears how far it has come, and which rows were rejected.
        """
        opening = admin_pb.ImportOpen(
            namespace=namespace,
            stream_id=stream_id or uuid.uuid4().hex,
            on_conflict=on_conflict,
            keep_organization=keep_organization,
        )
        return await import_records(
            self.admin,
            opening,
            records,
            on_progress=on_progress,
            metadata=self.metadata,
            outage=Outage(self._retry),
        )

    async def stats(self, namespace: str = "", *, timeout_s: float | None = None) -> admin_pb.GetStatsResponse:
        """Read counters of a namespace; of the whole server without one."""
        return await self._unary(self.admin.GetStats, admin_pb.GetStatsRequest(namespace=namespace), timeout_s)

    async def server_info(self, *, timeout_s: float | None = None) -> admin_pb.GetServerInfoResponse:
        """Read version, limits and models of the server."""
        return await self._unary(self.admin.GetServerInfo, admin_pb.GetServerInfoRequest(), timeout_s)

    async def run_probe(self, *, timeout_s: float | None = None) -> admin_pb.Operation:
        """Begin the competence probe of the server's language model, or find the one that runs."""
        return (await self._unary(self.admin.RunProbe, admin_pb.RunProbeRequest(), timeout_s)).operation


async def _stages(
    call: grpc.aio.UnaryStreamCall[memory_pb.RetrieveRequest, memory_pb.RetrieveResponse],
) -> AsyncIterator[memory_pb.RetrieveResponse]:
    try:
        with closing_told():
            async for stage in call:
                yield stage
    except grpc.aio.AioRpcError as error:
        raise from_rpc(error) from None


def _read_options(revision: types_pb2.Revision | None) -> types_pb2.ReadOptions | None:
    return types_pb2.ReadOptions(at_least_as_fresh=revision) if revision is not None else None
