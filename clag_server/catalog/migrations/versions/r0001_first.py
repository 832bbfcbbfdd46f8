"""The first schema.

Revision ID: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_INT64 = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "counters",
        sa.Column("id", _INT64, primary_key=True, autoincrement=False),
        sa.Column("revision", _INT64, nullable=False),
        sa.Column("key", _INT64, nullable=False),
        sa.Column("placement", _INT64, nullable=False),
        sa.Column("outbox", _INT64, nullable=False),
    )
    op.create_table(
        "namespaces",
        sa.Column("ns", _INT64, primary_key=True, autoincrement=True),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        sa.Column("embedder_name", sa.Text, nullable=False),
        sa.Column("embedder_fingerprint", sa.Text, nullable=False),
        sa.Column("embedder_dim", sa.Integer, nullable=False),
        sa.Column("create_time_ns", _INT64, nullable=False),
        sa.Column("created", _INT64, nullable=False),
        sa.Column("duplicates", _INT64, nullable=False),
        sa.Column("rejected", _INT64, nullable=False),
        sa.Column("deleted", _INT64, nullable=False),
        sa.Column("memories", _INT64, nullable=False),
        sa.Column("placed", _INT64, nullable=False),
        sa.Column("outbox_head", _INT64, nullable=False),
        sa.Column("next_cluster", _INT64, nullable=False),
        sa.Column("next_episode", _INT64, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "memories",
        sa.Column("key", _INT64, primary_key=True, autoincrement=False),
        sa.Column("ns", _INT64, nullable=False),
        sa.Column("memory_id", sa.Text, nullable=False),
        sa.Column("state", sa.Integer, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("kind", sa.Integer, nullable=False),
        sa.Column("task", sa.Text, nullable=False),
        sa.Column("speaker", sa.Text, nullable=False),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("session_position", _INT64, nullable=False),
        sa.Column("tags", sa.Text, nullable=False),
        sa.Column("attributes", sa.Text, nullable=False),
        sa.Column("importance", sa.Double),
        sa.Column("confidence", sa.Double, nullable=False),
        sa.Column("event_time_ns", _INT64, nullable=False),
        sa.Column("create_time_ns", _INT64, nullable=False),
        sa.Column("update_time_ns", _INT64, nullable=False),
        sa.Column("expire_time_ns", _INT64),
        sa.Column("context", sa.Text, nullable=False),
        sa.Column("keywords", sa.Text, nullable=False),
        sa.Column("evolved_tags", sa.Text, nullable=False),
        sa.Column("annotated_by", sa.Integer, nullable=False),
        sa.Column("links", sa.Text, nullable=False),
        sa.Column("cluster", _INT64),
        sa.Column("episode", _INT64),
        sa.Column("placement_id", _INT64),
        sa.Column("routing", sa.Text),
        sa.Column("supersedes", sa.Text, nullable=False),
        sa.Column("superseded_by", sa.Text, nullable=False),
        sa.Column("access_count", _INT64, nullable=False),
        sa.Column("last_access_time_ns", _INT64),
        sa.Column("revision", _INT64, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("client_embedding", sa.Boolean, nullable=False),
        sa.Column("embedding", sa.LargeBinary),
    )
    op.create_index("memories_id", "memories", ["ns", "memory_id"], unique=True)
    op.create_index("memories_key", "memories", ["ns", "key"], unique=True)
    op.create_index("memories_unfinished", "memories", ["ns", "state", "key"], sqlite_where=sa.text("state <> 4"))
    op.create_index(
        "memories_episode",
        "memories",
        ["ns", "episode", "session_position"],
        sqlite_where=sa.text("episode IS NOT NULL"),
    )
    op.create_index("memories_cluster", "memories", ["ns", "cluster"], sqlite_where=sa.text("cluster IS NOT NULL"))
    op.create_index(
        "memories_placement",
        "memories",
        ["ns", "placement_id"],
        unique=True,
        sqlite_where=sa.text("placement_id IS NOT NULL"),
    )
    op.create_index(
        "memories_superseded", "memories", ["ns", "superseded_by"], sqlite_where=sa.text("superseded_by <> ''")
    )
    op.create_table(
        "link_targets",
        sa.Column("ns", _INT64, primary_key=True, autoincrement=False),
        sa.Column("target", _INT64, primary_key=True, autoincrement=False),
        sa.Column("source", _INT64, primary_key=True, autoincrement=False),
        sqlite_with_rowid=False,
    )
    op.create_index("link_targets_source", "link_targets", ["ns", "source"])
    op.create_table(
        "sessions",
        sa.Column("ns", _INT64, primary_key=True, autoincrement=False),
        sa.Column("session_id", sa.Text, primary_key=True),
        sa.Column("next_position", _INT64, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "clusters",
        sa.Column("ns", _INT64, primary_key=True, autoincrement=False),
        sa.Column("cluster", _INT64, primary_key=True, autoincrement=False),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("summary", sa.Text, nullable=False),
        sa.Column("tags", sa.Text, nullable=False),
        sa.Column("representatives", sa.Text, nullable=False),
        sa.Column("closed_episodes", _INT64, nullable=False),
        sa.Column("memory_count", _INT64, nullable=False),
        sa.Column("state", sa.Integer, nullable=False),
        sa.Column("pinned", sa.Boolean, nullable=False),
        sa.Column("profile_stale", sa.Boolean, nullable=False),
        sa.Column("profile_count", _INT64, nullable=False),
        sa.Column("create_time_ns", _INT64, nullable=False),
        sa.Column("update_time_ns", _INT64, nullable=False),
        sa.Column("revision", _INT64, nullable=False),
        sa.Column("vector_sum", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "episodes",
        sa.Column("ns", _INT64, primary_key=True, autoincrement=False),
        sa.Column("episode", _INT64, primary_key=True, autoincrement=False),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("cluster", _INT64, nullable=False),
        sa.Column("memory_count", _INT64, nullable=False),
        sa.Column("first_position", _INT64, nullable=False),
        sa.Column("last_position", _INT64, nullable=False),
        sa.Column("open", sa.Boolean, nullable=False),
        sa.Column("last_time_ns", _INT64, nullable=False),
        sa.Column("vector_sum", sa.LargeBinary, nullable=False),
    )
    op.create_index("episodes_cluster", "episodes", ["ns", "cluster"])
    op.create_table(
        "failures",
        sa.Column(
            "key", _INT64, sa.ForeignKey("memories.key", ondelete="CASCADE"), primary_key=True, autoincrement=False
        ),
        sa.Column("state", sa.Integer, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("not_before_ns", _INT64, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
    )
    op.create_table(
        "ingest_streams",
        sa.Column("ns", _INT64, primary_key=True, autoincrement=False),
        sa.Column("stream_id", sa.Text, primary_key=True),
        sa.Column("epoch", _INT64, nullable=False),
        sa.Column("next_seq", _INT64, nullable=False),
        sa.Column("created", _INT64, nullable=False),
        sa.Column("duplicates", _INT64, nullable=False),
        sa.Column("rejected", _INT64, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "create_requests",
        sa.Column("ns", _INT64, primary_key=True, autoincrement=False),
        sa.Column("request_id", sa.Text, primary_key=True),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("memory_id", sa.Text, nullable=False),
        sa.Column("key", _INT64, nullable=False),
        sa.Column("time_ns", _INT64, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("create_requests_time", "create_requests", ["time_ns"])
    op.create_table(
        "changes",
        sa.Column("revision", _INT64, primary_key=True, autoincrement=False),
        sa.Column("ns", _INT64, nullable=False),
        sa.Column("kind", sa.Integer, nullable=False),
        sa.Column("key", _INT64, nullable=False),
        sa.Column("memory_id", sa.Text),
        sa.Column("time_ns", _INT64, nullable=False),
    )
    op.create_table(
        "memory_history",
        sa.Column("revision", _INT64, primary_key=True, autoincrement=False),
        sa.Column("ns", _INT64, nullable=False),
        sa.Column("key", _INT64, nullable=False),
        sa.Column("cause", _INT64, nullable=False),
        sa.Column("time_ns", _INT64, nullable=False),
        sa.Column("old", sa.Text, nullable=False),
    )
    op.create_index("memory_history_key", "memory_history", ["ns", "key", "revision"])
    op.create_table(
        "index_ops",
        sa.Column("ns", _INT64, primary_key=True, autoincrement=False),
        sa.Column("seq", _INT64, primary_key=True, autoincrement=False),
        sa.Column("put", sa.Boolean, nullable=False),
        sa.Column("placement_id", _INT64, nullable=False),
        sa.Column("cluster", _INT64, nullable=False),
        sa.Column("event_time_ns", _INT64, nullable=False),
        sa.Column("key", _INT64, nullable=False),
        sqlite_with_rowid=False,
    )
    op.execute("INSERT INTO counters (id, revision, key, placement, outbox) VALUES (1, 0, 0, 0, 0)")
