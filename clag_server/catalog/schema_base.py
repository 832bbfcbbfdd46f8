"""What all tables of the catalog have in common: their metadata, and whole numbers of 64 bits."""

from __future__ import annotations

import sqlalchemy as sa

__all__ = ["Int64", "metadata"]

metadata = sa.MetaData()

# SQLite makes only a column declared INTEGER an alias of its row id; other databases need 64 bits spelled out.
Int64 = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
