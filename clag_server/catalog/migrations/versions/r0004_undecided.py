"""An index over the memories whose routing awaits the SLM, so that a restart finds them without reading the others.

Revision ID: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the index; decisions that older releases deferred are not in it, and stand as the vectors made them."""
    op.create_index(
        "memories_undecided",
        "memories",
        ["ns", "episode"],
        sqlite_where=sa.text("json_extract(routing, '$.awaits_slm')"),
    )
