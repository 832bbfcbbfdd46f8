"""One ingest stream: commits batches, follows their memories through the pipeline, acknowledges cumulatively.

An item passes DURABLE (committed), SEARCHABLE (embedded and placed), ORGANIZED (evolved). Its outcome is reported
when it is durable and again at each level up to the stream's. A rejected, duplicate, quarantined or deleted item
has nothing to wait for and counts as having reached every level.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from clag_server.catalog.api import Namespace
from clag_server.memory.progress import KeyProgress, ProgressHub
from clag_server.types.errors import FrameOrder, SequenceGap, WindowExceeded
from clag_server.types.ingest import (
    Ack,
    AckLevel,
    AppendResult,
    Disposition,
    ItemOutcome,
    StoredItem,
    StreamPosition,
    StreamRef,
    StreamTotals,
)
from clag_server.types.memory import MemoryState, NewMemory

_RESULTS_PER_ACK = 1024


Item = TypeVar("Item", contravariant=True)


class StreamStore(Protocol[Item]):
    """Where a stream's items go: the catalog, or what stands before it."""

    async def append(
        self, ns: int, items: Sequence[Item], *, first_seq: int, stream: StreamRef | None, now_ns: int
    ) -> AppendResult:
        """Store items and move the watermark; see `catalog.api.Catalog.append`."""

    async def finish_stream(self, ns: int, ref: StreamRef, *, last_seq: int) -> StreamPosition:
        """Check the end; see `catalog.api.Catalog.finish_stream`."""


class StreamSession(Generic[Item]):
    """Implements `memory.service.IngestSession`, for memories and for imported rows."""

    def __init__(
        self,
        *,
        namespace: Namespace,
        position: StreamPosition,
        level: AckLevel,
        window_items: int,
        catalog: StreamStore[Item],
        hub: ProgressHub,
        on_stored: Callable[[Sequence[int]], None],
        on_finish: Callable[[frozenset[str]], None],
        now_ns: Callable[[], int],
        deleted: asyncio.Event | None = None,
    ) -> None:
        self._namespace = namespace
        self._position = position
        self._level = level
        self._window = window_items
        self._catalog = catalog
        self._hub = hub
        self._on_stored = on_stored
        self._on_finish = on_finish
        self._now_ns = now_ns
        self._deleted = deleted or asyncio.Event()
        self._durable = position.next_seq - 1
        self._acked = position.next_seq - 1
        self._told = (position.next_seq - 1, position.next_seq - 1)
        self._revision = 0
        self._waiting: dict[int, tuple[int, str]] = {}
        """Key -> (seq, memory id) of the items below the stream's level."""
        self._unreached: set[int] = set()
        self._results: list[ItemOutcome] = []
        self._quarantined = 0
        self._sessions: set[str] = set()
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self._closed = False
        self._finished = False

    @property
    def position(self) -> StreamPosition:
        """Where the stream stood when it was opened."""
        return self._position

    @property
    def window_items(self) -> int:
        """The credit window: items that may be sent but not acknowledged."""
        return self._window

    async def append(self, first_seq: int, items: Sequence[Item]) -> None:
        """Commit items; see `IngestSession.append`."""
        if self._finished:
            raise FrameOrder("a batch came after finish")
        outstanding = first_seq + len(items) - 1 - self._acked
        if outstanding > self._window:
            raise WindowExceeded(window=self._window, outstanding=outstanding)
        if first_seq > self._durable + 1:
            raise SequenceGap(expected=self._durable + 1, got=first_seq)
        result = await asyncio.shield(
            self._catalog.append(
                self._namespace.ns,
                items,
                first_seq=first_seq,
                stream=self._position.ref,
                now_ns=self._now_ns(),
            )
        )
        self._sessions.update(item.session_id for item in items if isinstance(item, NewMemory))
        self._durable = max(self._durable, first_seq + len(items) - 1)
        self._revision = max(self._revision, result.revision)
        self._report(result.items)
        self._on_stored([item.key for item in result.items if item.key is not None])

    async def finish(self, last_seq: int) -> StreamTotals:
        """Wait until every item reached the stream's level; see `IngestSession.finish`."""
        final = await self._catalog.finish_stream(self._namespace.ns, self._position.ref, last_seq=last_seq)
        self._finished = True
        self._on_finish(frozenset(self._sessions))
        await self._settled.wait()
        return StreamTotals(
            created=final.created,
            duplicates=final.duplicates,
            rejected=final.rejected,
            quarantined=self._quarantined,
            revision=self._revision,
        )

    async def acks(self) -> AsyncIterator[Ack]:
        """Yield acknowledgements; see `IngestSession.acks`."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._results or self._told != (self._acked, self._durable):
                batch = tuple(self._results[:_RESULTS_PER_ACK])
                del self._results[: len(batch)]
                self._told = (self._acked, self._durable)
                yield Ack(
                    acked_through=self._acked,
                    durable_through=self._durable,
                    window_items=self._window,
                    results=batch,
                    revision=self._revision,
                )
            if self._closed:
                return

    async def namespace_deleted(self) -> None:
        """Wait until the namespace is being deleted; see `IngestSession.namespace_deleted`."""
        await self._deleted.wait()

    async def close(self) -> None:
        """Stop listening and let `acks` end after what is committed was reported."""
        for key in list(self._waiting):
            self._hub.forget(key, self._progress)
        self._waiting.clear()
        self._closed = True
        self._changed.set()

    def _report(self, items: Sequence[StoredItem]) -> None:
        for item in items:
            created = item.disposition is Disposition.CREATED
            self._results.append(
                ItemOutcome(
                    seq=item.seq,
                    disposition=item.disposition,
                    level=None if item.disposition is Disposition.REJECTED else AckLevel.DURABLE,
                    memory_id=item.memory_id,
                    cluster=None,
                    state=MemoryState.STORED if created else None,
                    rejection=item.rejection,
                    error="",
                )
            )
            if created and item.key is not None and self._level > AckLevel.DURABLE:
                self._unreached.add(item.seq)
                self._settled.clear()
                self._waiting[item.key] = (item.seq, item.memory_id)
                self._hub.listen(item.key, self._progress)
        self._advance()

    def _progress(self, progress: KeyProgress) -> None:
        waiting = self._waiting.get(progress.key)
        if waiting is None:
            return
        seq, memory_id = waiting
        self._results.append(
            ItemOutcome(
                seq=seq,
                disposition=Disposition.CREATED,
                level=progress.level,
                memory_id=memory_id,
                cluster=progress.cluster,
                state=progress.state,
                rejection=None,
                error=progress.error,
            )
        )
        if progress.level >= self._level:
            del self._waiting[progress.key]
            self._hub.forget(progress.key, self._progress)
            self._unreached.discard(seq)
            if progress.state is MemoryState.QUARANTINED:
                self._quarantined += 1
        self._advance()

    def _advance(self) -> None:
        while self._acked < self._durable and self._acked + 1 not in self._unreached:
            self._acked += 1
        if not self._unreached:
            self._settled.set()
        self._changed.set()
