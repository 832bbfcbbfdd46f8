"""The full-text index of each namespace shown token by token, for scores with constants of our own.

Revision ID: 0005
"""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the views; they store nothing."""
    for (ns,) in op.get_bind().exec_driver_sql("SELECT ns FROM namespaces ORDER BY ns").fetchall():
        op.get_bind().exec_driver_sql(
            f"CREATE VIRTUAL TABLE terms_{int(ns)} USING fts5vocab(fts_{int(ns)}, instance)"
        )
