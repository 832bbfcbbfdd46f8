"""Exports and imports over reconnects: an export goes on at its cursor, an import at the server's position."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

import grpc
from clag.v1 import admin_service_pb2 as pb
from clag.v1 import types_pb2

from clag_client.closing import closing_told
from clag_client.errors import ClagError, from_rpc
from clag_client.first_status import FirstStatus
from clag_client.retry import Outage

if TYPE_CHECKING:
    from clag.v1.admin_service_pb2_grpc import AdminServiceAsyncStub  # exists for type checkers only

__all__ = ["ImportProgress", "export_responses", "import_records"]

ImportProgress: TypeAlias = Callable[[int, "list[pb.ImportRejection]"], None]
"""Hears the number of the last durable row, and the rows that were rejected since it was last called."""

MAX_FRAME_ROWS: Final = 128
MAX_FRAME_BYTES: Final = 1024 * 1024
_FRAME_OVERHEAD_BYTES: Final = 64
_ROW_OVERHEAD_BYTES: Final = 6  # tag and length

_Call: TypeAlias = "grpc.aio.StreamStreamCall[pb.ImportRequest, pb.ImportResponse]"


async def export_responses(
    stub: AdminServiceAsyncStub,
    namespace: str,
    *,
    cursor: str,
    include_embeddings: bool,
    filter: types_pb2.Filter | None,  # noqa: A002  # named as in the contract
    metadata: tuple[tuple[str, str], ...],
    outage: Outage,
) -> AsyncGenerator[pb.ExportResponse, None]:
    """Yield batches; after a broken connection from the last cursor on. The last batch has an empty cursor.

    Raises:
        ClagError: if the export cannot go on, e.g. because its snapshot is gone.
    """
    request = pb.ExportRequest(
        namespace=namespace, cursor=cursor, include_embeddings=include_embeddings, filter=filter
    )
    ever = bool(cursor)
    while True:
        forward = False
        call = stub.Export(request, metadata=metadata)
        try:
            with closing_told():
                async for response in call:
                    if not forward:
                        outage.connected()
                    forward = ever = True
                    request.cursor = response.cursor
                    yield response
            if forward and not request.cursor:
                return  # the server has closed, and knows that the last batch arrived
            error = ClagError(grpc.StatusCode.UNAVAILABLE, "the server ended the export before its last batch")
        except grpc.aio.AioRpcError as failed:
            if forward and not request.cursor:
                return  # it was the last batch that came before
            error = from_rpc(failed)
            if not ever and error.retry_after_s is None:
                raise error from None  # it was never there
        finally:
            call.cancel()
        await outage.wait(error, forward=forward)


async def import_records(
    stub: AdminServiceAsyncStub,
    opening: pb.ImportOpen,
    records: Iterable[pb.ExportRecord] | AsyncIterable[pb.ExportRecord],
    *,
    on_progress: ImportProgress,
    metadata: tuple[tuple[str, str], ...],
    outage: Outage,
) -> pb.ImportFinished:
    """Send rows within the server's window until all are durable.

    The k-th row has sequence number k. Rows are kept until the server says that they are durable, so that a new
    connection can send them again; what the server has from an earlier run is read and passed over. Without a
    single row nothing is sent, as an import makes its namespace.

    Raises:
        ClagError: if the import cannot be finished.
    """
    importing = _Importing(records, opening, on_progress)
    if not await importing.has_rows():
        return pb.ImportFinished()
    while True:
        before = importing.durable
        try:
            with closing_told():
                return await importing.over(stub, metadata, outage)
        except ClagError as error:
            if not importing.opened and error.retry_after_s is None:
                raise  # it was never there
            await outage.wait(error, forward=importing.durable > before)


class _Importing:
    """The state of an import that outlives its connections."""

    def __init__(
        self,
        records: Iterable[pb.ExportRecord] | AsyncIterable[pb.ExportRecord],
        opening: pb.ImportOpen,
        on_progress: ImportProgress,
    ) -> None:
        self._source = aiter(_each(records))
        self._opening = opening
        self._on_progress = on_progress
        self._kept: deque[pb.ExportRecord] = deque()  # rows after `durable`, sent or not
        self._read = 0
        self._end = False
        self._window = 0
        self._moved = asyncio.Event()
        self.durable = 0
        self.opened = False

    async def has_rows(self) -> bool:
        """Read the first row; False when there is none."""
        return await self._fill()

    async def over(
        self, stub: AdminServiceAsyncStub, metadata: tuple[tuple[str, str], ...], outage: Outage
    ) -> pb.ImportFinished:
        """Work over one connection until the import is finished. Raises ClagError when it breaks."""
        call: _Call = stub.Import(metadata=metadata)
        status = FirstStatus(call)
        try:
            with suppress(asyncio.InvalidStateError):  # it failed at once; the read says how
                await call.write(pb.ImportRequest(open=self._opening))
            opened = (await _read(call)).opened
            outage.connected()
            await self._go_on_at(opened)
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(self._write(call, opened))
                finished = await self._read_acks(call)
                writer.cancel()
        except grpc.aio.AioRpcError as error:
            raise await status.told(error) from None
        except BaseExceptionGroup as errors:
            first = errors.exceptions[0]
            raise (await status.told(first) if isinstance(first, grpc.aio.AioRpcError) else first) from None
        else:
            return finished
        finally:
            call.cancel()

    async def _go_on_at(self, opened: pb.ImportOpened) -> None:
        """Pass over what the server has; refuse a position that cannot be sent (again)."""
        through = opened.next_seq - 1
        if through < self.durable:
            sentence = f"the server asks for row {opened.next_seq}, which this import cannot send again"
            raise ClagError(grpc.StatusCode.DATA_LOSS, sentence)
        while self._read < through and await self._fill():
            self._advance(min(through, self._read))
        self._advance(min(through, self._read))
        self.durable = through
        self._window = opened.window_items
        self.opened = True
        self._on_progress(through, [])

    def _advance(self, durable: int) -> None:
        for _ in range(durable - self.durable):
            self._kept.popleft()
        self.durable = max(self.durable, durable)
        self._moved.set()

    async def _fill(self) -> bool:
        """Read one row; False at the end."""
        if not self._end:
            try:
                self._kept.append(await anext(self._source))
            except StopAsyncIteration:
                self._end = True
            else:
                self._read += 1
        return not self._end

    async def _read_acks(self, call: _Call) -> pb.ImportFinished:
        while True:
            response = await _read(call)
            if response.HasField("finished"):
                return response.finished
            self._window = response.ack.window_items
            self._advance(response.ack.acked_through)
            self._on_progress(self.durable, list(response.ack.rejections))

    async def _write(self, call: _Call, opened: pb.ImportOpened) -> None:
        """Send what the credit allows, oldest first, then finish. Ends quietly when the connection does."""
        rows = min(MAX_FRAME_ROWS, opened.max_batch_items or MAX_FRAME_ROWS)
        size = min(MAX_FRAME_BYTES, opened.max_batch_bytes or MAX_FRAME_BYTES) - _FRAME_OVERHEAD_BYTES
        following = self.durable + 1
        try:
            while True:
                batch = await self._batch(following, rows, size)
                if not batch:
                    await call.write(pb.ImportRequest(finish=pb.ImportFinish(last_seq=following - 1)))
                    return
                await call.write(pb.ImportRequest(batch=pb.ImportBatch(first_seq=following, records=batch)))
                following += len(batch)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the reader meets the same end and says what it was

    async def _batch(self, following: int, rows: int, limit: int) -> list[pb.ExportRecord]:
        """The next rows that fit in a frame and the window; none at the end."""
        batch: list[pb.ExportRecord] = []
        size = 0
        while len(batch) < rows:
            seq = following + len(batch)
            if seq > self.durable + self._window:
                if batch:
                    break
                self._moved.clear()
                await self._moved.wait()
                continue
            if seq > self._read and not await self._fill():
                break
            record = self._kept[seq - self.durable - 1]
            size += record.ByteSize() + _ROW_OVERHEAD_BYTES
            if batch and size > limit:
                break
            batch.append(record)
        return batch


async def _read(call: _Call) -> pb.ImportResponse:
    response = await call.read()
    if isinstance(response, pb.ImportResponse):
        return response
    raise ClagError(grpc.StatusCode.UNAVAILABLE, "the server ended the import before it was finished")


async def _each(
    records: Iterable[pb.ExportRecord] | AsyncIterable[pb.ExportRecord],
) -> AsyncIterator[pb.ExportRecord]:
    if isinstance(records, AsyncIterable):
        async for record in records:
            yield record
    else:
        for record in records:
            yield record
