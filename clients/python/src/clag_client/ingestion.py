"""One resumable stream of memories: credits, batches, reconnects, outcomes.

The k-th item of the source has sequence number k. Items are kept until the server says that they are durable, so
that a new connection can send them again; the server ignores what it already has. Three tasks work on it:

- the *pump* reads the source into a short queue, once for the whole ingestion;
- the *writer*, one for each connection, makes frames of what is there, within the credit;
- the *runner* opens connections, reads acknowledgements into a bounded queue of outcomes, and opens another
  connection when one breaks.

A consumer that does not read outcomes stops the runner, which stops the credit, which stops the source: memory
stays bounded by the window.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeAlias

import grpc
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2

from clag_client.closing import closing_told
from clag_client.errors import ClagError, SourceError
from clag_client.first_status import FirstStatus
from clag_client.outcomes import Outcome, lost_outcome, outcome_of
from clag_client.retry import Outage
from clag_client.source import Source, SourceEnd
from clag_client.values import ItemLike

if TYPE_CHECKING:
    from clag.v1.memory_service_pb2_grpc import MemoryServiceAsyncStub  # exists for type checkers only

__all__ = ["Ingestion"]

MAX_FRAME_ITEMS: Final = 64
"""Frames of 64 items cost the server 3 µs an item, single ones ten times that; larger ones gain nothing."""

MAX_FRAME_BYTES: Final = 1024 * 1024
_FRAME_OVERHEAD_BYTES: Final = 64
_ITEM_OVERHEAD_BYTES: Final = 6  # tag and length
_QUEUED_OUTCOMES: Final = 4096
_GOODBYE_S: Final = 2.0

_Call: TypeAlias = "grpc.aio.StreamStreamCall[pb.IngestRequest, pb.IngestResponse]"


@dataclass(frozen=True, slots=True)
class _End:
    failure: BaseException | None


class Ingestion:
    """A running ingestion; use as an async context manager, then iterate over outcomes or `wait`.

    Leaving the context early cancels the stream: what was acknowledged stays, and the same `stream_id` resumes.

    Attributes:
        resumed_at: sequence number of the first item that was sent, known after the first acknowledgement; items
            before it were durable from an earlier run and have no outcomes.
        opened: whether the server has opened the stream; from then on one that goes away is looked for.
        reconnects: connections opened after the first.
        totals: the server's counts of the whole stream, once it is finished.
    """

    def __init__(
        self,
        stub: MemoryServiceAsyncStub,
        source: Iterable[ItemLike] | AsyncIterable[ItemLike],
        opening: pb.IngestOpen,
        *,
        metadata: tuple[tuple[str, str], ...],
        outage: Outage,
        timeout_s: float | None = None,
    ) -> None:
        self._stub = stub
        self._source = Source(source)
        self._opening = opening
        self._metadata = metadata
        self._outage = outage
        self._timeout_s = timeout_s
        self._level = opening.ack_level or pb.ACK_LEVEL_DURABLE
        self._outcomes: asyncio.Queue[Outcome | _End] = asyncio.Queue(_QUEUED_OUTCOMES)
        self._tasks: list[asyncio.Task[None]] = []
        self._kept: deque[types_pb2.MemoryInput] = deque()  # items after _durable, sent or not
        self._durable = 0
        self._acked = 0
        self._window = 0
        self._frame_items = MAX_FRAME_ITEMS
        self._frame_bytes = MAX_FRAME_BYTES
        self._awaited: dict[int, str] = {}  # memory ids, as far as known, of sent items without a final outcome
        self._source_end: SourceEnd | None = None
        self._moved = asyncio.Event()
        self._ended = False
        self.opened = False
        self.resumed_at = 1
        self.reconnects = 0
        self.totals: pb.IngestFinished | None = None

    @property
    def durable_through(self) -> int:
        """Sequence number of the last item that is known to be on the server's disk, with all before it."""
        return self._durable

    async def __aenter__(self) -> Self:
        self._tasks.append(asyncio.create_task(self._run(), name="clag-ingest"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def __aiter__(self) -> AsyncIterator[Outcome]:
        return self

    async def __anext__(self) -> Outcome:
        """Return the next outcome; ends when every item has reached the level that was asked for.

        Raises:
            ClagError: if the stream cannot be finished.
            SourceError: if the source failed.
        """
        if self._ended:
            raise StopAsyncIteration
        outcome = await self._outcomes.get()
        if isinstance(outcome, Outcome):
            return outcome
        self._ended = True
        if outcome.failure is not None:
            raise outcome.failure
        raise StopAsyncIteration

    async def wait(self) -> pb.IngestFinished:
        """Pass over the remaining outcomes and return the server's counts.

        Raises:
            ClagError: if the stream cannot be finished.
            SourceError: if the source failed.
        """
        async for _ in self:
            pass
        if self.totals is None:
            raise ClagError(grpc.StatusCode.CANCELLED, "the ingestion was ended before it was finished")
        return self.totals

    async def _run(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                with closing_told():
                    await self._connect_until_finished()
        except TimeoutError:
            late = f"the ingestion was not finished within {self._timeout_s} s"
            await self._outcomes.put(_End(ClagError(grpc.StatusCode.DEADLINE_EXCEEDED, late)))
        except Exception as error:  # noqa: BLE001  # handed on: the consumer would wait for ever without it
            await self._outcomes.put(_End(error))
        else:
            await self._outcomes.put(_End(None))

    async def _connect_until_finished(self) -> None:
        while self.totals is None:
            before = self._durable
            try:
                await self._connection()
            except ClagError as error:
                if not self.opened and error.retry_after_s is None:
                    raise  # it was never there
                await self._outage.wait(error, forward=self._durable > before)
                self.reconnects += 1

    async def _connection(self) -> None:
        """Work over one connection until the stream is finished. Raises ClagError when it breaks."""
        call: _Call = self._stub.Ingest(metadata=self._metadata)
        status = FirstStatus(call)
        try:
            with suppress(asyncio.InvalidStateError):  # it failed at once; the read says how
                await call.write(pb.IngestRequest(open=self._opening))
            await self._opened(await _read(call))
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(self._write(call))
                await self._read_acks(call)
                writer.cancel()
        except grpc.aio.AioRpcError as error:
            raise await status.told(error) from None
        except BaseExceptionGroup as errors:
            told = await _told(errors, status)
            raise told from told.__cause__
        finally:
            call.cancel()

    async def _opened(self, response: pb.IngestResponse) -> None:
        if not response.HasField("opened"):
            raise ClagError(grpc.StatusCode.INTERNAL, "the server did not answer open with opened")
        opened = response.opened
        self._outage.connected()
        through = opened.next_seq - 1
        if not self.opened:
            self.opened = True
            self._durable = through
            self.resumed_at = opened.next_seq
            self._tasks.append(asyncio.create_task(self._source.pump(skip=through), name="clag-ingest-source"))
        elif through < self._durable or through > self._durable + len(self._kept):
            sentence = f"the server asks for item {opened.next_seq}, which this stream cannot send (again)"
            raise ClagError(grpc.StatusCode.DATA_LOSS, sentence)
        for seq in [seq for seq in self._awaited if seq <= through]:
            await self._outcomes.put(lost_outcome(seq, self._awaited.pop(seq)))
        self._advance(acked=through, durable=through)
        self._window = opened.window_items
        self._frame_items = min(MAX_FRAME_ITEMS, opened.max_batch_items or MAX_FRAME_ITEMS)
        self._frame_bytes = min(MAX_FRAME_BYTES, opened.max_batch_bytes or MAX_FRAME_BYTES) - _FRAME_OVERHEAD_BYTES

    def _advance(self, *, acked: int, durable: int) -> None:
        for _ in range(min(durable - self._durable, len(self._kept))):
            self._kept.popleft()
        self._durable = max(self._durable, durable)
        self._acked = max(self._acked, acked)
        self._moved.set()

    async def _read_acks(self, call: _Call) -> None:
        while True:
            response = await _read(call)
            if response.HasField("finished"):
                self.totals = response.finished
                with suppress(TimeoutError):
                    async with asyncio.timeout(_GOODBYE_S):
                        await call.code()  # let the server close, so that it does not see a cancelled call
                return
            ack = response.ack
            for result in ack.results:
                outcome = outcome_of(result, wanted=self._level)
                if outcome.final:
                    self._awaited.pop(result.seq, None)
                elif result.seq in self._awaited:
                    self._awaited[result.seq] = result.memory_id
                await self._outcomes.put(outcome)
            self._window = ack.window_items
            self._advance(acked=ack.acked_through, durable=ack.durable_through)

    async def _write(self, call: _Call) -> None:
        """Send what the credit allows, oldest first, then finish. Ends quietly when the connection does."""
        following = self._durable + 1
        try:
            while True:
                await self._fill(following)
                batch = self._batch(following)
                if batch:
                    self._awaited.update(enumerate((item.memory_id for item in batch), start=following))
                    frame = pb.IngestBatch(first_seq=following, items=batch)
                    await call.write(pb.IngestRequest(batch=frame))
                    following += len(batch)
                elif self._source_end is not None:
                    await self._until_durable(following - 1)
                    if self._source_end.failure is not None:
                        raise self._source_end.failure
                    await call.write(pb.IngestRequest(finish=pb.IngestFinish(last_seq=following - 1)))
                    return
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the reader meets the same end and says what it was

    async def _fill(self, following: int) -> None:
        """Wait until there is credit and something to send from `following` on, or the source has ended."""
        while following > self._acked + self._window:
            self._moved.clear()
            await self._moved.wait()
        last = self._durable + len(self._kept)
        if last < following and self._source_end is None:
            self._keep(await self._source.queue.get())
        while self._source_end is None and not self._source.queue.empty() and len(self._kept) < self._window:
            self._keep(self._source.queue.get_nowait())

    async def _until_durable(self, seq: int) -> None:
        while self._durable < seq:
            self._moved.clear()
            await self._moved.wait()

    def _keep(self, item: types_pb2.MemoryInput | SourceEnd) -> None:
        if isinstance(item, SourceEnd):
            self._source_end = item
        else:
            self._kept.append(item)

    def _batch(self, following: int) -> list[types_pb2.MemoryInput]:
        start = following - self._durable - 1
        credit = self._acked + self._window - self._durable
        stop = min(len(self._kept), credit, start + self._frame_items)
        batch: list[types_pb2.MemoryInput] = []
        size = 0
        for index in range(start, stop):
            item = self._kept[index]
            size += item.ByteSize() + _ITEM_OVERHEAD_BYTES
            if batch and size > self._frame_bytes:
                break
            batch.append(item)
        return batch


async def _read(call: _Call) -> pb.IngestResponse:
    response = await call.read()
    if isinstance(response, pb.IngestResponse):
        return response
    raise ClagError(grpc.StatusCode.UNAVAILABLE, "the server ended the stream before it was finished")


async def _told(errors: BaseExceptionGroup[BaseException], status: FirstStatus) -> BaseException:
    """Pick what to tell the caller out of what the reader and the writer met."""
    for error in errors.exceptions:
        if isinstance(error, SourceError):
            return error
    first = errors.exceptions[0]
    return await status.told(first) if isinstance(first, grpc.aio.AioRpcError) else first
