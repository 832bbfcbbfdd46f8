"""Tables of what happened and what was asked for: numbers, changes, histories, requests, operations, the outbox."""

from __future__ import annotations

import enum

import sqlalchemy as sa

from clag_server.catalog.schema_base import Int64, metadata


class ChangeKind(enum.IntEnum):
    """What a row of the change log says. MEMORY kinds carry a memory's key, CLUSTER kinds a cluster's number."""

    MEMORY_CREATED = 1
    MEMORY_PLACED = 2
    MEMORY_ROUTED = 3
    MEMORY_EVOLVED = 4
    MEMORY_SUPERSEDED = 5
    MEMORY_QUARANTINED = 6
    MEMORY_DELETED = 7
    CLUSTER_PUT = 8
    CLUSTER_REMOVED = 9
    MEMORY_UPDATED = 10
    CLUSTER_CREATED = 11


counters = sa.Table(
    "counters",
    metadata,
    sa.Column("id", Int64, primary_key=True, autoincrement=False),
    sa.Column("revision", Int64, nullable=False),
    sa.Column("key", Int64, nullable=False),
    sa.Column("placement", Int64, nullable=False),
    sa.Column("outbox", Int64, nullable=False),
    sa.Column("catalog_id", sa.Text, nullable=False, server_default=""),
    sa.Column("owner", sa.Text, nullable=False, server_default=""),
    sa.Column("owner_epoch", Int64, nullable=False, server_default="0"),
    sa.Column("compacted_through", Int64, nullable=False, server_default="0"),
)
"""One row: the last number given out of each kind. Numbers are never given out twice, also after deletes.

`catalog_id` names this catalog (made at its first opening, hexadecimal). `owner` and `owner_epoch` say which
server may write: every opening counts the epoch up, and a writer of an older one is refused. Changes up to
`compacted_through` are gone from the log.
"""

changes = sa.Table(
    "changes",
    metadata,
    sa.Column("revision", Int64, primary_key=True, autoincrement=False),
    sa.Column("ns", Int64, nullable=False),
    sa.Column("kind", sa.Integer, nullable=False),
    sa.Column("key", Int64, nullable=False),
    sa.Column("memory_id", sa.Text),  # only of deleted memories: the others are found by key
    sa.Column("time_ns", Int64, nullable=False),
    sa.Column("cluster", Int64),  # where a memory came to be, or was when it was deleted
    sa.Column("old_cluster", Int64),  # where a moved memory was
    sa.Index("changes_deleted", "key", sqlite_where=sa.text("memory_id IS NOT NULL")),
)
"""The index finds the id of a deleted memory for the earlier changes that only have its key."""

memory_history = sa.Table(
    "memory_history",
    metadata,
    sa.Column("revision", Int64, primary_key=True, autoincrement=False),
    sa.Column("ns", Int64, nullable=False),
    sa.Column("key", Int64, nullable=False),
    sa.Column("cause", Int64, nullable=False),
    sa.Column("time_ns", Int64, nullable=False),
    sa.Column("old", sa.Text, nullable=False),
    sa.Column("reason", sa.Integer, nullable=False, server_default="3"),
    sa.Column("model", sa.Text, nullable=False, server_default=""),
    sa.Column("cluster", Int64),
    sa.Index("memory_history_key", "ns", "key", "revision"),
)
"""`old` is a JSON object of the fields that the change replaced, with their values before it.

`cause` is the key of the memory that caused it, `reason` a number of `types.change.HistoryCause`.
"""

cluster_history = sa.Table(
    "cluster_history",
    metadata,
    sa.Column("ns", Int64, primary_key=True, autoincrement=False),
    sa.Column("cluster", Int64, primary_key=True, autoincrement=False),
    sa.Column("revision", Int64, primary_key=True, autoincrement=False),
    sa.Column("event", sa.Integer, nullable=False),
    sa.Column("time_ns", Int64, nullable=False),
    sa.Column("others", sa.Text, nullable=False),
    sa.Column("memories", Int64, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("operation_id", sa.Text, nullable=False),
    sa.Column("old_title", sa.Text, nullable=False),
    sa.Column("new_title", sa.Text, nullable=False),
    sqlite_with_rowid=False,
)
"""What happened to a cluster; kept when the cluster is gone. `others` are numbers of other clusters, JSON."""

operations = sa.Table(
    "operations",
    metadata,
    sa.Column("operation_id", sa.Text, primary_key=True),
    sa.Column("number", Int64, nullable=False, unique=True),
    sa.Column("ns", Int64),
    sa.Column("namespace", sa.Text, nullable=False),
    sa.Column("kind", sa.Integer, nullable=False),
    sa.Column("state", sa.Integer, nullable=False),
    sa.Column("request", sa.Text, nullable=False),
    sa.Column("request_id", sa.Text, nullable=False),
    sa.Column("phase", sa.Text, nullable=False),
    sa.Column("done", Int64, nullable=False),
    sa.Column("total", Int64, nullable=False),
    sa.Column("progress", sa.Text, nullable=False),
    sa.Column("result", sa.Text, nullable=False),
    sa.Column("error", sa.Text, nullable=False),
    sa.Column("cancel_asked", sa.Boolean, nullable=False),
    sa.Column("create_time_ns", Int64, nullable=False),
    sa.Column("end_time_ns", Int64),
    sa.Index(
        "operations_request", "namespace", "request_id", unique=True, sqlite_where=sa.text("request_id <> ''")
    ),
)
"""`number` orders operations by their asking (it is a revision); `request`, `progress`, `result` are JSON."""

edit_requests = sa.Table(
    "edit_requests",
    metadata,
    sa.Column("ns", Int64, primary_key=True, autoincrement=False),
    sa.Column("request_id", sa.Text, primary_key=True),
    sa.Column("digest", sa.LargeBinary, nullable=False),
    sa.Column("answer", sa.Text, nullable=False),
    sa.Column("time_ns", Int64, nullable=False),
    sa.Index("edit_requests_time", "time_ns"),
    sqlite_with_rowid=False,
)
"""What an edit with a request id answered (JSON), for its retries."""

create_requests = sa.Table(
    "create_requests",
    metadata,
    sa.Column("ns", Int64, primary_key=True, autoincrement=False),
    sa.Column("request_id", sa.Text, primary_key=True),
    sa.Column("digest", sa.LargeBinary, nullable=False),
    sa.Column("memory_id", sa.Text, nullable=False),
    sa.Column("key", Int64, nullable=False),
    sa.Column("time_ns", Int64, nullable=False),
    sa.Index("create_requests_time", "time_ns"),
    sqlite_with_rowid=False,
)

ingest_streams = sa.Table(
    "ingest_streams",
    metadata,
    sa.Column("ns", Int64, primary_key=True, autoincrement=False),
    sa.Column("stream_id", sa.Text, primary_key=True),
    sa.Column("epoch", Int64, nullable=False),
    sa.Column("next_seq", Int64, nullable=False),
    sa.Column("created", Int64, nullable=False),
    sa.Column("duplicates", Int64, nullable=False),
    sa.Column("rejected", Int64, nullable=False),
    sqlite_with_rowid=False,
)

import_numbers = sa.Table(
    "import_numbers",
    metadata,
    sa.Column("ns", Int64, primary_key=True, autoincrement=False),
    sa.Column("stream_id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("source", sa.Text, primary_key=True),
    sa.Column("number", Int64, nullable=False),
    sqlite_with_rowid=False,
)
"""Which cluster ("cluster") or episode ("episode") of ours an import made of one of its source."""

index_ops = sa.Table(
    "index_ops",
    metadata,
    sa.Column("ns", Int64, primary_key=True, autoincrement=False),
    sa.Column("seq", Int64, primary_key=True, autoincrement=False),
    sa.Column("put", sa.Boolean, nullable=False),
    sa.Column("placement_id", Int64, nullable=False),
    sa.Column("cluster", Int64, nullable=False),
    sa.Column("event_time_ns", Int64, nullable=False),
    sa.Column("key", Int64, nullable=False),
    sqlite_with_rowid=False,
)
