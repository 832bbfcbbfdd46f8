"""Tables of the catalog, as SQLAlchemy Core sees them.

The migrations in `migrations/versions` create these tables; a test compares the two. Lists, attributes and routing
decisions are JSON text (written and read by `rows`), vectors are float32 little-endian blobs. One full-text table
per namespace (`lexical`) lives beside them, because FTS5 is no concept of Core.
"""

from __future__ import annotations

import enum

import sqlalchemy as sa

metadata = sa.MetaData()

# SQLite makes only a column declared INTEGER an alias of its row id; other databases need 64 bits spelled out.
Int64 = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

UNFINISHED_SQL = "state <> 4"
"""Term of the partial index over unfinished memories: a query must repeat it literally to be served by the index.

4 is `MemoryState.EVOLVED`.
"""

UNDECIDED_SQL = "json_extract(routing, '$.awaits_slm')"
"""Term of the partial index over memories whose routing awaits the SLM; repeated literally, as `UNFINISHED_SQL`."""


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

namespaces = sa.Table(
    "namespaces",
    metadata,
    sa.Column("ns", Int64, primary_key=True, autoincrement=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    sa.Column("embedder_name", sa.Text, nullable=False),
    sa.Column("embedder_fingerprint", sa.Text, nullable=False),
    sa.Column("embedder_dim", sa.Integer, nullable=False),
    sa.Column("create_time_ns", Int64, nullable=False),
    sa.Column("created", Int64, nullable=False),
    sa.Column("duplicates", Int64, nullable=False),
    sa.Column("rejected", Int64, nullable=False),
    sa.Column("deleted", Int64, nullable=False),
    sa.Column("memories", Int64, nullable=False),
    sa.Column("placed", Int64, nullable=False),
    sa.Column("outbox_head", Int64, nullable=False),
    sa.Column("next_cluster", Int64, nullable=False),
    sa.Column("next_episode", Int64, nullable=False),
    sa.Column("settings", sa.Text, nullable=False, server_default="{}"),
    sa.Column("update_time_ns", Int64, nullable=False, server_default="0"),
    sa.Column("revision", Int64, nullable=False, server_default="0"),
    sa.Column("deleting", sa.Boolean, nullable=False, server_default="0"),
    sa.Column("placed_digest", Int64, nullable=False, server_default="0"),
    sqlite_autoincrement=True,
)
"""Counts are kept here, in the transactions that change them, so that statistics never scan the memories.

`next_cluster` and `next_episode` only grow: what was removed leaves its number to nobody. `settings` is a JSON
object of those that are set; `revision` is that of their last change (0: never), and the etag. `placed_digest` is
`types.digest` of the current placements.
"""

memories = sa.Table(
    "memories",
    metadata,
    sa.Column("key", Int64, primary_key=True, autoincrement=False),
    sa.Column("ns", Int64, nullable=False),
    sa.Column("memory_id", sa.Text, nullable=False),
    sa.Column("state", sa.Integer, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("kind", sa.Integer, nullable=False),
    sa.Column("task", sa.Text, nullable=False),
    sa.Column("speaker", sa.Text, nullable=False),
    sa.Column("session_id", sa.Text, nullable=False),
    sa.Column("session_position", Int64, nullable=False),
    sa.Column("tags", sa.Text, nullable=False),
    sa.Column("attributes", sa.Text, nullable=False),
    sa.Column("importance", sa.Double),
    sa.Column("confidence", sa.Double, nullable=False),
    sa.Column("event_time_ns", Int64, nullable=False),
    sa.Column("create_time_ns", Int64, nullable=False),
    sa.Column("update_time_ns", Int64, nullable=False),
    sa.Column("expire_time_ns", Int64),
    sa.Column("context", sa.Text, nullable=False),
    sa.Column("keywords", sa.Text, nullable=False),
    sa.Column("evolved_tags", sa.Text, nullable=False),
    sa.Column("annotated_by", sa.Integer, nullable=False),
    sa.Column("links", sa.Text, nullable=False),
    sa.Column("cluster", Int64),
    sa.Column("episode", Int64),
    sa.Column("placement_id", Int64),
    sa.Column("routing", sa.Text),
    sa.Column("supersedes", sa.Text, nullable=False),
    sa.Column("superseded_by", sa.Text, nullable=False),
    sa.Column("access_count", Int64, nullable=False),
    sa.Column("last_access_time_ns", Int64),
    sa.Column("revision", Int64, nullable=False),
    sa.Column("error", sa.Text, nullable=False),
    sa.Column("client_embedding", sa.Boolean, nullable=False),
    sa.Column("embedding", sa.LargeBinary),  # last: reads of the other columns stop before it
    sa.Index("memories_id", "ns", "memory_id", unique=True),
    sa.Index("memories_key", "ns", "key", "episode"),  # the episode of a key without reading its wide row
    sa.Index("memories_unfinished", "ns", "state", "key", sqlite_where=sa.text(UNFINISHED_SQL)),
    sa.Index("memories_episode", "ns", "episode", "session_position", sqlite_where=sa.text("episode IS NOT NULL")),
    sa.Index("memories_cluster", "ns", "cluster", sqlite_where=sa.text("cluster IS NOT NULL")),
    sa.Index(
        "memories_placement", "ns", "placement_id", unique=True, sqlite_where=sa.text("placement_id IS NOT NULL")
    ),
    sa.Index("memories_expiry", "ns", "expire_time_ns", sqlite_where=sa.text("expire_time_ns IS NOT NULL")),
    sa.Index("memories_undecided", "ns", "episode", sqlite_where=sa.text(UNDECIDED_SQL)),
    sa.Index("memories_superseded", "ns", "superseded_by", sqlite_where=sa.text("superseded_by <> ''")),
)
"""A placed memory has an episode, a cluster, a placement id and an embedding; another has none of the first three.

Queries for members name the episode or the cluster only: with `placement_id IS NOT NULL` beside it SQLite takes
that for a range of the placement index, and reads the whole namespace.
"""

link_targets = sa.Table(
    "link_targets",
    metadata,
    sa.Column("ns", Int64, primary_key=True, autoincrement=False),
    sa.Column("target", Int64, primary_key=True, autoincrement=False),
    sa.Column("source", Int64, primary_key=True, autoincrement=False),
    sa.Index("link_targets_source", "ns", "source"),
    sqlite_with_rowid=False,
)
"""Which memories link to a memory, so that a delete finds them without reading every memory's links."""

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("ns", Int64, primary_key=True, autoincrement=False),
    sa.Column("session_id", sa.Text, primary_key=True),
    sa.Column("next_position", Int64, nullable=False),
    sqlite_with_rowid=False,
)

clusters = sa.Table(
    "clusters",
    metadata,
    sa.Column("ns", Int64, primary_key=True, autoincrement=False),
    sa.Column("cluster", Int64, primary_key=True, autoincrement=False),
    sa.Column("title", sa.Text, nullable=False),
    sa.Column("summary", sa.Text, nullable=False),
    sa.Column("tags", sa.Text, nullable=False),
    sa.Column("representatives", sa.Text, nullable=False),
    sa.Column("closed_episodes", Int64, nullable=False),
    sa.Column("memory_count", Int64, nullable=False),
    sa.Column("state", sa.Integer, nullable=False),
    sa.Column("pinned", sa.Boolean, nullable=False),
    sa.Column("profile_stale", sa.Boolean, nullable=False),
    sa.Column("profile_count", Int64, nullable=False),
    sa.Column("create_time_ns", Int64, nullable=False),
    sa.Column("update_time_ns", Int64, nullable=False),
    sa.Column("revision", Int64, nullable=False),
    sa.Column("vector_sum", sa.LargeBinary, nullable=False),
    sa.Column("client_fields", sa.Text, nullable=False, server_default="[]"),
    sa.Column("profiled_by", sa.Integer, nullable=False, server_default="0"),
)
"""`client_fields` are those of title, summary and tags that a client wrote: the server leaves them alone."""

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

episodes = sa.Table(
    "episodes",
    metadata,
    sa.Column("ns", Int64, primary_key=True, autoincrement=False),
    sa.Column("episode", Int64, primary_key=True, autoincrement=False),
    sa.Column("session_id", sa.Text, nullable=False),
    sa.Column("cluster", Int64, nullable=False),
    sa.Column("memory_count", Int64, nullable=False),
    sa.Column("first_position", Int64, nullable=False),
    sa.Column("last_position", Int64, nullable=False),
    sa.Column("open", sa.Boolean, nullable=False),
    sa.Column("last_time_ns", Int64, nullable=False),
    sa.Column("vector_sum", sa.LargeBinary, nullable=False),
    sa.Index("episodes_cluster", "ns", "cluster"),
)

failures = sa.Table(
    "failures",
    metadata,
    sa.Column(
        "key", Int64, sa.ForeignKey("memories.key", ondelete="CASCADE"), primary_key=True, autoincrement=False
    ),
    sa.Column("state", sa.Integer, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("not_before_ns", Int64, nullable=False),
    sa.Column("error", sa.Text, nullable=False),
)
"""Failed attempts at leaving `state`: only memories that failed have a row, the queue itself is the state."""

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
