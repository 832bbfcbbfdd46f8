"""The synchronous client: `AsyncClient` on an event loop in a background thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from types import TracebackType
from typing import Self, Unpack

from clag.v1 import admin_service_pb2 as admin_pb
from clag.v1 import memory_service_pb2 as memory_pb
from clag.v1 import types_pb2

from clag_client.aio import DEFAULT_TIMEOUT_S, AsyncClient
from clag_client.answers import SyncAnswerCalls
from clag_client.clusters import SyncClusterCalls
from clag_client.connect import Tls
from clag_client.in_thread import in_thread
from clag_client.ingestion import Ingestion
from clag_client.loop import Iteration, Loop
from clag_client.outcomes import Outcome
from clag_client.retry import RetryPolicy
from clag_client.sync_calls import SyncCalls
from clag_client.values import ItemLike, RetrieveOptions

__all__ = ["Client", "SyncIngestion"]


class SyncIngestion:
    """A running ingestion; iterate over outcomes or `wait`. See `Ingestion`."""

    def __init__(self, loop: Loop, ingestion: Ingestion) -> None:
        self._ingestion = ingestion
        self._outcomes = loop.iterate(ingestion)

    def __iter__(self) -> Iterator[Outcome]:
        return self._outcomes

    def wait(self) -> memory_pb.IngestFinished:
        """Pass over the remaining outcomes and return the server's counts."""
        return self._outcomes.run(self._ingestion.wait())

    def cancel(self) -> None:
        """End the iteration or the waiting of another thread by a `ClagError` with the code CANCELLED."""
        self._outcomes.cancel()

    @property
    def resumed_at(self) -> int:
        """Sequence number of the first item that was sent."""
        return self._ingestion.resumed_at

    @property
    def reconnects(self) -> int:
        """Connections opened after the first."""
        return self._ingestion.reconnects


class Client(SyncCalls, SyncClusterCalls, SyncAnswerCalls):
    """A connection to a CLAG server for programs without an event loop. Methods as those of `AsyncClient`.

    It may be used by several threads at once. What the context managers of streams give has `cancel()`, which ends
    it from another thread.
    """

    def __init__(
        self,
        target: str,
        *,
        token: str = "",
        tls: Tls | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retry: RetryPolicy | None = None,
    ) -> None:
        self._loop = Loop()

        async def connect() -> AsyncClient:  # channels belong to the loop that runs when they are made
            return AsyncClient(target, token=token, tls=tls, timeout_s=timeout_s, retry=retry)

        try:
            self._client = self._loop.run(connect())
        except BaseException:
            self._loop.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what is running, close the connection and end the thread; once more is no error."""
        if self._loop.closed:
            return
        try:
            self._loop.run(self._client.close())
        finally:
            self._loop.close()

    @contextmanager
    def ingest(
        self,
        namespace: str,
        items: Iterable[ItemLike],
        *,
        stream_id: str = "",
        ack_level: memory_pb.AckLevel.ValueType = memory_pb.ACK_LEVEL_DURABLE,
        stages: memory_pb.IngestStages.ValueType = memory_pb.INGEST_STAGES_ALL,
        timeout_s: float | None = None,
    ) -> Iterator[SyncIngestion]:
        """Stream memories in. The items are read in another thread, so reading may wait."""
        source = in_thread(iter(items))
        ingestion = self._client.ingest(
            namespace, source, stream_id=stream_id, ack_level=ack_level, stages=stages, timeout_s=timeout_s
        )
        with self._loop.entered(ingestion):
            yield SyncIngestion(self._loop, ingestion)

    @contextmanager
    def retrieve(
        self,
        namespace: str,
        query: str | Sequence[float],
        *,
        timeout_s: float | None = None,
        **options: Unpack[RetrieveOptions],
    ) -> Iterator[Iteration[memory_pb.RetrieveResponse]]:
        """Retrieve in stages. Leaving the context early cancels the call."""
        manager = self._client.retrieve(namespace, query, timeout_s=timeout_s, **options)
        with self._loop.entered(manager) as stages:
            yield self._loop.iterate(stages)

    def get_context(
        self,
        namespace: str,
        query: str | Sequence[float],
        *,
        timeout_s: float | None = None,
        **options: Unpack[RetrieveOptions],
    ) -> memory_pb.GetContextResponse:
        """Retrieve everything in one response."""
        return self._loop.run(self._client.get_context(namespace, query, timeout_s=timeout_s, **options))

    def create_memory(
        self,
        namespace: str,
        item: ItemLike,
        *,
        request_id: str = "",
        ack_level: memory_pb.AckLevel.ValueType = memory_pb.ACK_LEVEL_DURABLE,
        timeout_s: float | None = None,
    ) -> memory_pb.CreateMemoryResponse:
        """Store one memory and wait until it has reached `ack_level`."""
        return self._loop.run(
            self._client.create_memory(
                namespace, item, request_id=request_id, ack_level=ack_level, timeout_s=timeout_s
            )
        )

    def get_memory(
        self, namespace: str, memory_id: str, *, include_embedding: bool = False, timeout_s: float | None = None
    ) -> types_pb2.Memory:
        """Read one memory."""
        return self._loop.run(
            self._client.get_memory(namespace, memory_id, include_embedding=include_embedding, timeout_s=timeout_s)
        )

    def list_memories(
        self,
        namespace: str,
        *,
        filter: types_pb2.Filter | None = None,  # noqa: A002  # named as in the contract
        page_size: int = 0,
    ) -> Iterator[types_pb2.Memory]:
        """Yield all memories that match, in order of arrival."""
        return self._loop.iterate(self._client.list_memories(namespace, filter=filter, page_size=page_size))

    def delete_memory(
        self, namespace: str, memory_id: str, *, etag: str = "", allow_missing: bool = False
    ) -> memory_pb.DeleteMemoryResponse:
        """Delete one memory everywhere."""
        return self._loop.run(
            self._client.delete_memory(namespace, memory_id, etag=etag, allow_missing=allow_missing)
        )

    @contextmanager
    def watch(
        self,
        namespace: str,
        *,
        start_after: types_pb2.Revision | None = None,
        kinds: Sequence[memory_pb.ChangeKind.ValueType] = (),
        include_values: bool = False,
    ) -> Iterator[Iteration[memory_pb.WatchResponse]]:
        """Watch changes as they happen, over reconnects. Leaving the context ends the watch."""
        responses = self._client.watch(
            namespace, start_after=start_after, kinds=kinds, include_values=include_values
        )
        with self._loop.entered(aclosing(responses)):
            yield self._loop.iterate(responses)

    @contextmanager
    def export(
        self,
        namespace: str,
        *,
        cursor: str = "",
        include_embeddings: bool = False,
        filter: types_pb2.Filter | None = None,  # noqa: A002  # named as in the contract
    ) -> Iterator[Iteration[admin_pb.ExportResponse]]:
        """Export batches of rows of one moment, over reconnects. Leaving the context early ends the export."""
        responses = self._client.export(
            namespace, cursor=cursor, include_embeddings=include_embeddings, filter=filter
        )
        with self._loop.entered(aclosing(responses)):
            yield self._loop.iterate(responses)

    def import_records(
        self,
        namespace: str,
        records: Iterable[admin_pb.ExportRecord],
        *,
        stream_id: str = "",
        on_conflict: admin_pb.ImportConflict.ValueType = admin_pb.IMPORT_CONFLICT_KEEP,
        keep_organization: bool = False,
    ) -> admin_pb.ImportFinished:
        """Load exported rows and return the server's counts. The rows are read in another thread."""
        return self._loop.run(
            self._client.import_records(
                namespace,
                in_thread(iter(records)),
                stream_id=stream_id,
                on_conflict=on_conflict,
                keep_organization=keep_organization,
            )
        )

    def stats(self, namespace: str = "") -> admin_pb.GetStatsResponse:
        """Read counters of a namespace; of the whole server without one."""
        return self._loop.run(self._client.stats(namespace))

    def server_info(self) -> admin_pb.GetServerInfoResponse:
        """Read version, limits and models of the server."""
        return self._loop.run(self._client.server_info())

    def run_probe(self) -> admin_pb.Operation:
        """Begin the competence probe of the server's language model, or find the one that runs."""
        return self._loop.run(self._client.run_probe())
