"""Export at the edge: batches of bounded size, a cursor after each."""

# ruff: noqa: N802 - methods have the names of the contract

from __future__ import annotations

from contextlib import aclosing

from clag.v1 import admin_service_pb2 as pb

from clag_server.api.convert_export import Cursor, cursor_from, cursor_to, record_to
from clag_server.api.convert_filter import filter_from
from clag_server.api.convert_values import revision
from clag_server.api.interceptors.drain import DrainGate
from clag_server.api.interceptors.guard import Context
from clag_server.api.open_calls import until_drained
from clag_server.api.paging import scope_of
from clag_server.memory.exporting import ExportPage, OpenExport
from clag_server.memory.feeds import Feeds

__all__ = ["ExportCalls"]

BATCH_BYTES = 1 << 20
"""A batch is sent when it has grown to this; a row is far smaller."""


class ExportCalls:
    """The part of AdminService that exports."""

    _feeds: Feeds
    _gate: DrainGate

    async def Export(self, request: pb.ExportRequest, context: Context) -> None:
        """Stream a snapshot at the reader's pace."""
        await until_drained(self._gate, self._export(request, context))

    async def _export(self, request: pb.ExportRequest, context: Context) -> None:
        has_filter = request.HasField("filter")
        scope = scope_of(
            "Export",
            request.namespace,
            request.filter.SerializeToString(deterministic=True),
            has_filter,
            request.include_embeddings,
        )
        cursor = cursor_from(scope, request.cursor)
        where = filter_from(request.filter) if has_filter else None
        exports = self._feeds.exports
        async with exports.open(request.namespace, snapshot_id=cursor.snapshot_id, where=where) as export:
            if not cursor.snapshot_id:
                cursor = Cursor(export.snapshot_id, total=await export.total())
            ns = export.ns
            pages = export.pages(cursor.position, embeddings=request.include_embeddings)
            async with aclosing(pages):
                async for page in pages:
                    await exports.present(request.namespace, ns)
                    for response in _batches(request.namespace, export, page, scope, cursor):
                        await context.write(response)
                    export.finished = page.last


def _batches(
    namespace: str, export: OpenExport, page: ExportPage, scope: bytes, cursor: Cursor
) -> list[pb.ExportResponse]:
    """Split a page into responses; the last response of the last page has no cursor."""
    batches: list[pb.ExportResponse] = []
    size = BATCH_BYTES
    for row in page.rows:
        record = record_to(namespace, row)
        if size >= BATCH_BYTES:
            batches.append(pb.ExportResponse(snapshot=revision(namespace, export.revision), total=cursor.total))
            size = 0
        batches[-1].records.append(record)
        batches[-1].cursor = cursor_to(scope, Cursor(cursor.snapshot_id, row.position, cursor.total))
        size += record.ByteSize()
    if page.last:
        if not batches:
            batches.append(pb.ExportResponse(snapshot=revision(namespace, export.revision), total=cursor.total))
        batches[-1].cursor = ""
    return batches
