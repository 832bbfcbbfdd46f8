"""Settings and digests of namespaces, richer change log and history, operations, imports, ownership.

Revision ID: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from clag_server.types.digest import add, placements_digest

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_INT64 = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_PAGE = 50_000


def upgrade() -> None:
    """Add what is new, and compute the digests of what is there."""
    for name, kind, default in (
        ("settings", sa.Text, "{}"),
        ("update_time_ns", _INT64, "0"),
        ("revision", _INT64, "0"),
        ("deleting", sa.Boolean, "0"),
        ("placed_digest", _INT64, "0"),
    ):
        op.add_column("namespaces", sa.Column(name, kind, nullable=False, server_default=default))
    for name, kind, default in (
        ("catalog_id", sa.Text, ""),
        ("owner", sa.Text, ""),
        ("owner_epoch", _INT64, "0"),
        ("compacted_through", _INT64, "0"),
    ):
        op.add_column("counters", sa.Column(name, kind, nullable=False, server_default=default))
    op.create_index(
        "memories_expiry",
        "memories",
        ["ns", "expire_time_ns"],
        sqlite_where=sa.text("expire_time_ns IS NOT NULL"),
    )
    op.add_column("changes", sa.Column("cluster", _INT64))
    op.add_column("changes", sa.Column("old_cluster", _INT64))
    op.create_index("changes_deleted", "changes", ["key"], sqlite_where=sa.text("memory_id IS NOT NULL"))
    op.add_column("memory_history", sa.Column("reason", sa.Integer, nullable=False, server_default="3"))
    op.add_column("memory_history", sa.Column("model", sa.Text, nullable=False, server_default=""))
    op.add_column("memory_history", sa.Column("cluster", _INT64))
    op.create_table(
        "operations",
        sa.Column("operation_id", sa.Text, primary_key=True),
        sa.Column("number", _INT64, nullable=False, unique=True),
        sa.Column("ns", _INT64),
        sa.Column("namespace", sa.Text, nullable=False),
        sa.Column("kind", sa.Integer, nullable=False),
        sa.Column("state", sa.Integer, nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("done", _INT64, nullable=False),
        sa.Column("total", _INT64, nullable=False),
        sa.Column("progress", sa.Text, nullable=False),
        sa.Column("result", sa.Text, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("cancel_asked", sa.Boolean, nullable=False),
        sa.Column("create_time_ns", _INT64, nullable=False),
        sa.Column("end_time_ns", _INT64),
    )
    op.create_index(
        "operations_request",
        "operations",
        ["namespace", "request_id"],
        unique=True,
        sqlite_where=sa.text("request_id <> ''"),
    )
    op.create_table(
        "import_numbers",
        sa.Column("ns", _INT64, primary_key=True, autoincrement=False),
        sa.Column("stream_id", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("source", sa.Text, primary_key=True),
        sa.Column("number", _INT64, nullable=False),
        sqlite_with_rowid=False,
    )
    op.execute("UPDATE memory_history SET reason = 6 WHERE old LIKE '{\"superseded_by\"%'")
    _compute_digests(op.get_bind())


def _compute_digests(connection: sa.Connection) -> None:
    page = sa.text(
        "SELECT placement_id, cluster FROM memories WHERE ns = :ns AND placement_id IS NOT NULL"
        " AND placement_id > :after ORDER BY placement_id LIMIT :page"
    )
    for ns in connection.scalars(sa.text("SELECT ns FROM namespaces ORDER BY ns")).all():
        digest, after = 0, -1
        while rows := connection.execute(page, {"ns": ns, "after": after, "page": _PAGE}).all():
            digest = add(digest, placements_digest([row[0] for row in rows], [row[1] for row in rows]))
            after = rows[-1][0]
        connection.execute(
            sa.text("UPDATE namespaces SET placed_digest = :digest WHERE ns = :ns"), {"digest": digest, "ns": ns}
        )
