"""Framed client streams: open, batches, finish; acknowledgements as the work advances. Ingest and Import are such.

Three tasks: a reader that decodes frames into a short queue (when it is full, flow control reaches the client),
the committer, and a writer of acknowledgements. The committer joins frames that piled up during a commit into the
next one. End of stream looks the same for half-close, cancellation and crash, so only a `finish` frame finishes;
what was committed before any other end stays, and the stream can be opened again.

Credit is what the client was told: while it reads no acknowledgements none are written, and what it sends beyond
its window is refused. So neither items nor outcomes pile up here, whatever a client does.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from google.protobuf.message import Message

from clag_server.api.errors import TooLarge
from clag_server.api.facts import ServerFacts
from clag_server.api.interceptors.drain import DrainGate
from clag_server.api.interceptors.guard import Context
from clag_server.contract.codec import Frame
from clag_server.models.api import ModelError
from clag_server.types.errors import ClagError, Draining, FrameOrder, NamespaceDeleted, WindowExceeded
from clag_server.types.ingest import Ack, StreamPosition, StreamTotals

__all__ = ["FrameSource", "FramedCall", "FramedSession"]

QUEUED_FRAMES = 4
"""Frames that are decoded ahead of the commit; enough to keep it busy, little enough to bound memory."""

MERGED_ITEMS = 512
"""Items that one commit joins at most: larger ones delay the first acknowledgement without being faster."""

FrameSource: TypeAlias = AsyncIterator[Frame[Any]]
"""Frames of a message with the oneof `frame` of `open`, `batch` and `finish`."""

Item = TypeVar("Item")
ItemIn = TypeVar("ItemIn", contravariant=True)


class FramedSession(Protocol[ItemIn]):
    """The domain's side of a stream; see `memory.service.IngestSession`."""

    @property
    def position(self) -> StreamPosition:
        """Where the stream stood when it was opened."""

    @property
    def window_items(self) -> int:
        """The credit window."""

    async def append(self, first_seq: int, items: Sequence[ItemIn]) -> None:
        """Commit items."""

    async def finish(self, last_seq: int) -> StreamTotals:
        """Wait until every item reached the stream's level."""

    def acks(self) -> AsyncIterator[Ack]:
        """Acknowledgements as they come."""

    async def namespace_deleted(self) -> None:
        """Wait until the namespace is being deleted."""

    async def close(self) -> None:
        """End `acks`."""


@dataclass(frozen=True, slots=True)
class _Open:
    message: Any


@dataclass(frozen=True, slots=True)
class _Batch(Generic[Item]):
    first_seq: int
    items: list[Item]


@dataclass(frozen=True, slots=True)
class _Finish:
    last_seq: int


@dataclass(frozen=True, slots=True)
class _EndOfStream:
    pass


_Entry: TypeAlias = _Open | _Batch[Any] | _Finish | _EndOfStream | Exception


class FramedCall(ABC, Generic[Item]):
    """One call.

    Args:
        frames: The client's frames, each valid but for its items.
        context: The call.
        facts: Limits, and the streams that are open.
        gate: Says when the server drains.
    """

    def __init__(self, frames: FrameSource, context: Context, facts: ServerFacts, gate: DrainGate) -> None:
        self._frames = frames
        self._context = context
        self._facts = facts
        self._gate = gate
        self._namespace = ""
        self._acked_through = 0
        """Of the newest acknowledgement that the client can know of."""
        self._queue: asyncio.Queue[_Entry] = asyncio.Queue(QUEUED_FRAMES)

    async def run(self) -> None:
        """Serve the call to its end; errors are raised after what is committed was acknowledged."""
        reader = asyncio.create_task(self._read())
        watcher = asyncio.create_task(self._watch_drain())
        try:
            first = await self._queue.get()
            match first:
                case _Open():
                    await self._open(first.message)
                case Exception():
                    raise first
                case _:
                    return  # the client went away before it said anything
        finally:
            await _end(reader, watcher)

    @abstractmethod
    async def _session(self, opening: Any) -> FramedSession[Item]:
        """Open the stream that the `open` frame asks for."""

    @abstractmethod
    def _opened(self, session: FramedSession[Item]) -> Message:
        """Answer `open`."""

    @abstractmethod
    def _ack(self, ack: Ack) -> Message:
        """Return the frame of an acknowledgement."""

    @abstractmethod
    def _finished(self, totals: StreamTotals) -> Message:
        """Answer `finish`."""

    @abstractmethod
    def _items(self, frame: Frame[Any]) -> list[Item]:
        """Return the items of a batch: each valid, or why it is rejected."""

    async def _open(self, message: Any) -> None:
        self._namespace = message.namespace
        session = await self._session(message)
        self._acked_through = session.position.next_seq - 1
        watcher = asyncio.create_task(self._watch_deletion(session))
        try:
            with self._facts.streams.counted(message.namespace):
                await self._context.write(self._opened(session))
                await self._serve(session)
        finally:
            await _end(watcher)
            await session.close()

    async def _serve(self, session: FramedSession[Item]) -> None:
        totals: StreamTotals | None = None
        failure: Exception | None = None
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write_acks(session))
            try:
                totals = await self._commit(session)
            except (ClagError, ModelError) as error:
                failure = error
            # Ends the writer after the last outcomes; the group waits for it.
            await session.close()
        if failure is not None:
            raise failure
        if totals is not None:
            await self._context.write(self._finished(totals))

    async def _write_acks(self, session: FramedSession[Item]) -> None:
        async for ack in session.acks():
            self._acked_through = ack.acked_through
            await self._context.write(self._ack(ack))

    async def _commit(self, session: FramedSession[Item]) -> StreamTotals | None:
        """Commit batches until the end; the totals when the client finished the stream."""
        entry = await self._queue.get()
        while True:
            match entry:
                case _Batch():
                    window = session.window_items
                    following = self._join(entry, window)
                    if (outstanding := self._outstanding(entry)) > window:
                        raise WindowExceeded(window=window, outstanding=outstanding)
                    await session.append(entry.first_seq, entry.items)
                    entry = following or await self._queue.get()
                case _Finish():
                    return await self._finish(session, entry.last_seq)
                case Exception():
                    raise entry
                case _:
                    return None

    def _outstanding(self, batch: _Batch[Item]) -> int:
        """Items up to the batch's last one that the client was not told to be acknowledged."""
        return batch.first_seq + len(batch.items) - 1 - self._acked_through

    def _join(self, batch: _Batch[Item], window: int) -> _Entry | None:
        """Add to `batch` what waits and continues it within the window; the entry that does not is returned."""
        while not self._queue.empty():
            entry = self._queue.get_nowait()
            continues = (
                isinstance(entry, _Batch)
                and entry.first_seq == batch.first_seq + len(batch.items)
                and len(batch.items) + len(entry.items) <= MERGED_ITEMS
                and self._outstanding(entry) <= window
            )
            if not continues or not isinstance(entry, _Batch):
                return entry
            batch.items.extend(entry.items)
        return None

    async def _finish(self, session: FramedSession[Item], last_seq: int) -> StreamTotals:
        """Wait for the totals; an error, a frame after finish or a drain ends the wait."""
        work = asyncio.create_task(session.finish(last_seq))
        news = asyncio.create_task(self._bad_news())
        try:
            await asyncio.wait((work, news), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise news.result()
            return await work
        finally:
            await _end(work, news)

    async def _bad_news(self) -> Exception:
        """What ends the wait of a finished stream; its half-close does not."""
        while True:
            match await self._queue.get():
                case Exception() as error:
                    return error
                case _EndOfStream():
                    continue
                case _:
                    return FrameOrder("a frame came after finish")

    async def _read(self) -> None:
        """Decode frames into the queue; errors go the same way, in their place."""
        opened = False
        try:
            async for frame in self._frames:
                await self._queue.put(self._entry(frame, opened=opened))
                opened = True
        except Exception as error:  # noqa: BLE001 - nothing is swallowed: the committer raises it
            await self._queue.put(error)
        else:
            await self._queue.put(_EndOfStream())

    async def _watch_drain(self) -> None:
        await self._gate.drained()
        await self._queue.put(Draining())

    async def _watch_deletion(self, session: FramedSession[Item]) -> None:
        await session.namespace_deleted()
        await self._queue.put(NamespaceDeleted(self._namespace))

    def _entry(self, frame: Frame[Any], *, opened: bool) -> _Entry:
        message = frame.message
        limit = self._facts.ingest.max_batch_bytes
        if (size := message.ByteSize()) > limit:
            raise TooLarge("the frame", size=size, limit=limit, advice="send smaller batches")
        kind = message.WhichOneof("frame")
        if (kind == "open") == opened:
            raise FrameOrder("the stream was opened before" if opened else "the first frame must be open")
        match kind:
            case "open":
                return _Open(message.open)
            case "finish":
                return _Finish(message.finish.last_seq)
            case _:
                return _Batch(message.batch.first_seq, self._items(frame))


async def _end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait for them; their errors were handled where they were awaited, or came too late."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
