"""Watch and ListMemoryHistory at the edge."""

# ruff: noqa: N802 - methods have the names of the contract

from __future__ import annotations

from contextlib import aclosing

from clag.v1 import memory_service_pb2 as pb

from clag_server.api.convert_values import revision
from clag_server.api.convert_watch import event_to, history_entry_to, watch_query_from
from clag_server.api.errors import WatchCompacted
from clag_server.api.interceptors.drain import DrainGate
from clag_server.api.interceptors.guard import Context
from clag_server.api.limits import page_size
from clag_server.api.open_calls import until_drained
from clag_server.api.paging import page_token, resume_after_number, scope_of
from clag_server.memory.feeds import Feeds
from clag_server.memory.watching import WatchQuery
from clag_server.types.errors import LogCompacted

__all__ = ["HistoryCalls", "WatchCalls"]

MAX_REVISION = 2**62
"""Above every revision."""


class WatchCalls:
    """The part of MemoryService that tells of changes as they happen."""

    _feeds: Feeds
    _gate: DrainGate

    async def Watch(self, request: pb.WatchRequest, context: Context) -> None:
        """Stream changes at the reader's pace."""
        await until_drained(self._gate, self._watch(watch_query_from(request), context))

    async def _watch(self, query: WatchQuery, context: Context) -> None:
        try:
            async with aclosing(self._feeds.watching.watch(query)) as events:
                async for event in events:
                    await context.write(event_to(query.namespace, event))
        except LogCompacted as compacted:
            raise WatchCompacted(compacted, revision(query.namespace, compacted.oldest).token) from None


class HistoryCalls:
    """The part of MemoryService that tells what happened to a memory."""

    _feeds: Feeds

    async def ListMemoryHistory(
        self, request: pb.ListMemoryHistoryRequest, _context: Context
    ) -> pb.ListMemoryHistoryResponse:
        """Page through what happened to a memory, newest first."""
        scope = scope_of("ListMemoryHistory", request.namespace, request.memory_id)
        before = resume_after_number(scope, request.page_token, start=MAX_REVISION)
        page = await self._feeds.history(
            request.namespace,
            request.memory_id,
            before=None if before == MAX_REVISION else before,
            limit=page_size(request.page_size),
        )
        return pb.ListMemoryHistoryResponse(
            entries=[history_entry_to(request.namespace, entry) for entry in page.entries],
            next_page_token=page_token(scope, page.next_before),
        )
