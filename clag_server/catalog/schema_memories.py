"""Tables of what is remembered: namespaces, memories, and where they are."""

from __future__ import annotations

import sqlalchemy as sa

from clag_server.catalog.schema_base import Int64, metadata

UNFINISHED_SQL = "state <> 4"
"""Term of the partial index over unfinished memories: a query must repeat it literally to be served by the index.

4 is `MemoryState.EVOLVED`.
"""

UNDECIDED_SQL = "json_extract(routing, '$.awaits_slm')"
"""Term of the partial index over memories whose routing awaits the SLM; repeated literally, as `UNFINISHED_SQL`."""

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
