"""The Ingest call: items checked one by one, acknowledgements as the pipeline advances (see `framed`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clag.v1 import memory_service_pb2 as pb

from clag_server.api.convert_ingest import ack_to, finished_to, level_and_stages, opened_to
from clag_server.api.convert_memory import new_memory_from
from clag_server.api.facts import ServerFacts
from clag_server.api.framed import FramedCall, FramedSession, FrameSource
from clag_server.api.interceptors.drain import DrainGate
from clag_server.api.interceptors.guard import Context
from clag_server.contract.codec import Frame, violations
from clag_server.memory.service import MemoryService
from clag_server.types.errors import FieldViolation, InvalidField
from clag_server.types.ingest import Ack, IngestItem, Rejection, StreamTotals

__all__ = ["FrameSource", "IngestCall"]


class IngestCall(FramedCall[IngestItem]):
    """One Ingest call.

    Args:
        frames: The client's frames, each valid but for its items.
        context: The call.
        service: The domain.
        facts: Limits and the dimension of embeddings.
        gate: Says when the server drains.
    """

    def __init__(
        self, frames: FrameSource, context: Context, service: MemoryService, facts: ServerFacts, gate: DrainGate
    ) -> None:
        super().__init__(frames, context, facts, gate)
        self._service = service

    async def _session(self, opening: pb.IngestOpen) -> FramedSession[IngestItem]:
        level, stages = level_and_stages(opening)
        return await self._service.open_ingest(opening.namespace, opening.stream_id, level=level, stages=stages)

    def _opened(self, session: FramedSession[IngestItem]) -> pb.IngestResponse:
        limits = self._facts.ingest
        return opened_to(
            session.position,
            window_items=session.window_items,
            max_batch_items=limits.max_batch_items,
            max_batch_bytes=limits.max_batch_bytes,
        )

    def _ack(self, ack: Ack) -> pb.IngestResponse:
        return ack_to(self._namespace, ack)

    def _finished(self, totals: StreamTotals) -> pb.IngestResponse:
        return finished_to(self._namespace, totals)

    def _items(self, frame: Frame[Any]) -> list[IngestItem]:
        """Each item, or why it is rejected."""
        dim = self._facts.embedding_dim()
        items: list[IngestItem] = []
        for index, message in enumerate(frame.message.batch.items):
            found: Sequence[FieldViolation] = frame.blanked.get(index, ()) or violations(message, embeddings=False)
            if not found:
                try:
                    items.append(new_memory_from(message, dim=dim))
                    continue
                except InvalidField as invalid:
                    found = invalid.violations
            items.append(Rejection(found[0].field, found[0].description))
        return items
