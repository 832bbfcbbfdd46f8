"""Exported rows from domain to protobuf, and the cursors between them."""

from __future__ import annotations

import re
from typing import Final

from clag.v1 import admin_service_pb2 as pb

from clag_server.api.convert_admin import namespace_to
from clag_server.api.convert_cluster import cluster_to
from clag_server.api.convert_memory import memory_to
from clag_server.api.errors import CursorMismatch, PageTokenMismatch
from clag_server.api.paging import page_token, resume_after
from clag_server.catalog.api import Namespace
from clag_server.memory.exporting import ExportPosition, ExportRow
from clag_server.memory.service import ClusterView

__all__ = ["Cursor", "cursor_from", "cursor_to", "record_to"]

_CURSOR: Final = re.compile(r"([0-9a-f]{32})\.([0-2])\.([0-9]{1,18})\.([0-9]{1,18})")


class Cursor:
    """Where an export goes on: its snapshot ("" for a new one), the row before, and the rows in all."""

    def __init__(self, snapshot_id: str = "", position: ExportPosition | None = None, total: int = 0) -> None:
        self.snapshot_id = snapshot_id
        self.position = position or ExportPosition()
        self.total = total


def cursor_from(scope: bytes, token: str) -> Cursor:
    """Read a cursor.

    Raises:
        CursorMismatch: It is malformed, was damaged, or belongs to an export of something else.
    """
    if not token:
        return Cursor()
    try:
        match = _CURSOR.fullmatch(resume_after(scope, token))
    except PageTokenMismatch:
        raise CursorMismatch from None
    if match is None:
        raise CursorMismatch
    return Cursor(match[1], ExportPosition(int(match[2]), int(match[3])), int(match[4]))


def cursor_to(scope: bytes, cursor: Cursor) -> str:
    """Write a cursor."""
    position = cursor.position
    return page_token(scope, f"{cursor.snapshot_id}.{position.stage}.{position.after}.{cursor.total}")


def record_to(namespace: str, row: ExportRow) -> pb.ExportRecord:
    """One row."""
    match row.record:
        case Namespace() as record:
            return pb.ExportRecord(namespace=namespace_to(record))
        case ClusterView() as record:
            return pb.ExportRecord(cluster=cluster_to(namespace, record))
        case record:
            return pb.ExportRecord(memory=memory_to(namespace, record))
