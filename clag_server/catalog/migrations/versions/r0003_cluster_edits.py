"""Edits of clusters: what clients wrote, what happened to each, answers for retries; episodes of keys by index.

Revision ID: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_INT64 = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the columns and tables; profiles that are there were made by statistics."""
    op.add_column("clusters", sa.Column("client_fields", sa.Text, nullable=False, server_default="[]"))
    op.add_column("clusters", sa.Column("profiled_by", sa.Integer, nullable=False, server_default="0"))
    op.execute("UPDATE clusters SET profiled_by = 2 WHERE title <> ''")
    op.create_table(
        "cluster_history",
        sa.Column("ns", _INT64, primary_key=True, autoincrement=False),
        sa.Column("cluster", _INT64, primary_key=True, autoincrement=False),
        sa.Column("revision", _INT64, primary_key=True, autoincrement=False),
        sa.Column("event", sa.Integer, nullable=False),
        sa.Column("time_ns", _INT64, nullable=False),
        sa.Column("others", sa.Text, nullable=False),
        sa.Column("memories", _INT64, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("operation_id", sa.Text, nullable=False),
        sa.Column("old_title", sa.Text, nullable=False),
        sa.Column("new_title", sa.Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "edit_requests",
        sa.Column("ns", _INT64, primary_key=True, autoincrement=False),
        sa.Column("request_id", sa.Text, primary_key=True),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("answer", sa.Text, nullable=False),
        sa.Column("time_ns", _INT64, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("edit_requests_time", "edit_requests", ["time_ns"])
    op.drop_index("memories_key", "memories")
    op.create_index("memories_key", "memories", ["ns", "key", "episode"])
