"""Import at the edge: framed and acknowledged as Ingest (see `framed`)."""

# ruff: noqa: N802 - methods have the names of the contract

from __future__ import annotations

import time
from typing import Any

from clag.v1 import admin_service_pb2 as pb

from clag_server.api.convert_import import ack_to, finished_to, opened_to, options_from, row_from
from clag_server.api.facts import ServerFacts
from clag_server.api.framed import FramedCall, FramedSession, FrameSource
from clag_server.api.interceptors.drain import DrainGate
from clag_server.api.interceptors.guard import Context
from clag_server.contract.codec import Frame
from clag_server.memory.feeds import Feeds
from clag_server.memory.importing import Imports
from clag_server.types.ingest import Ack, Rejection, StreamTotals
from clag_server.types.transfer import ImportRow

__all__ = ["ImportCalls"]


class ImportCalls:
    """The part of AdminService that imports."""

    _facts: ServerFacts
    _feeds: Feeds
    _gate: DrainGate

    async def Import(self, frames: FrameSource, context: Context) -> None:
        """Load rows with acknowledgements, resume and flow control."""
        await _ImportCall(frames, context, self._feeds.imports, self._facts, self._gate).run()


class _ImportCall(FramedCall[ImportRow]):
    def __init__(
        self, frames: FrameSource, context: Context, imports: Imports, facts: ServerFacts, gate: DrainGate
    ) -> None:
        super().__init__(frames, context, facts, gate)
        self._imports = imports

    async def _session(self, opening: pb.ImportOpen) -> FramedSession[ImportRow]:
        return await self._imports.open(opening.namespace, opening.stream_id, options_from(opening))

    def _opened(self, session: FramedSession[ImportRow]) -> pb.ImportResponse:
        limits = self._facts.ingest
        return opened_to(
            session.position,
            window_items=session.window_items,
            batch_items=limits.max_batch_items,
            batch_bytes=limits.max_batch_bytes,
        )

    def _ack(self, ack: Ack) -> pb.ImportResponse:
        return ack_to(self._namespace, ack)

    def _finished(self, totals: StreamTotals) -> pb.ImportResponse:
        return finished_to(self._namespace, totals)

    def _items(self, frame: Frame[Any]) -> list[ImportRow]:
        now_ns = time.time_ns()
        rows: list[ImportRow] = []
        for index, record in enumerate(frame.message.batch.records):
            blanked = frame.blanked.get(index, ())
            if blanked:
                rows.append(Rejection(blanked[0].field, blanked[0].description))
            else:
                rows.append(row_from(record, now_ns=now_ns, same_space=self._imports.same_space))
        return rows
