"""What happened to clusters, and what their edits answered."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa

from clag_server.catalog.api_clusters import EditAnswer
from clag_server.catalog.rows import to_json
from clag_server.catalog.schema import cluster_history, edit_requests
from clag_server.catalog.transaction import WriteTx, compile_insert
from clag_server.types.cluster import ClusterEvent, ClusterHistoryEntry, ClusterNote
from clag_server.types.errors import RequestIdReused

_INSERT_NOTE: Final = compile_insert(cluster_history)
_KEEP_NS: Final = 24 * 3600 * 10**9
"""How long an edit's answer is kept for its retries, in nanoseconds."""


def write_notes(tx: WriteTx, ns: int, notes: Sequence[ClusterNote], *, now_ns: int) -> None:
    """Write down what a transaction does to clusters, each note under a revision of its own."""
    tx.executemany(
        _INSERT_NOTE,
        [
            (
                ns, note.cluster, tx.next_revision(), int(note.event), now_ns, to_json(list(note.others)),
                note.memories, note.reason, note.operation_id, note.old_title, note.new_title,
            )
            for note in notes
        ],
    )  # fmt: skip


def read_notes(
    connection: sa.Connection, ns: int, cluster: int, *, before: int | None, limit: int
) -> Sequence[ClusterHistoryEntry]:
    """Return a page of a cluster's history, newest first; empty for one that never was."""
    h = cluster_history.c
    wanted = sa.select(cluster_history).where(h.ns == ns, h.cluster == cluster)
    if before is not None:
        wanted = wanted.where(h.revision < before)
    rows = connection.execute(wanted.order_by(h.revision.desc()).limit(limit))
    return [
        ClusterHistoryEntry(
            ClusterNote(
                cluster=row.cluster,
                event=ClusterEvent(row.event),
                reason=row.reason,
                others=tuple(json.loads(row.others)),
                memories=row.memories,
                operation_id=row.operation_id,
                old_title=row.old_title,
                new_title=row.new_title,
            ),
            time_ns=row.time_ns,
            revision=row.revision,
        )
        for row in rows
    ]


def find_answer(connection: sa.Connection, ns: int, request_id: str, digest: bytes) -> str | None:
    """Return what the request answered before, None when it is new.

    Raises:
        RequestIdReused: the id came with another request.
    """
    e = edit_requests.c
    row = connection.execute(
        sa.select(e.digest, e.answer).where(e.ns == ns, e.request_id == request_id)
    ).one_or_none()
    if row is None:
        return None
    if row.digest != digest:
        raise RequestIdReused(request_id)
    answer: str = row.answer
    return answer


def save_answer(tx: WriteTx, ns: int, answer: EditAnswer, *, now_ns: int) -> None:
    """Keep an answer for retries, and forget those that are older than a day."""
    tx.connection.execute(sa.delete(edit_requests).where(edit_requests.c.time_ns < now_ns - _KEEP_NS))
    tx.connection.execute(
        sa.insert(edit_requests).values(
            ns=ns, request_id=answer.request_id, digest=answer.digest, answer=answer.text, time_ns=now_ns
        )
    )
