"""Brings a database to this program's schema, in one transaction, and refuses one of a newer program."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import sqlalchemy as sa

from clag_server.types.errors import StorageFailed

HEAD: Final = "0005"
"""Newest revision in `migrations/versions` (a test compares); Alembic is slow to import, so it waits for a need."""

_SCRIPTS = Path(__file__).parent / "migrations"


def current_revision(connection: sa.Connection) -> str | None:
    """Return the schema revision of the database, None for an empty one."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    version: str | None = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
    return version


def migrate(connection: sa.Connection) -> bool:
    """Upgrade to `HEAD`; the caller encloses this in a transaction.

    Returns:
        Whether there was anything to upgrade.

    Raises:
        StorageFailed: the database was written by a newer program, or is another program's.
    """
    current = current_revision(connection)
    if current == HEAD:
        return False
    if current is None and (foreign := sa.inspect(connection).get_table_names()):
        raise StorageFailed(f"the file is another program's database (it has a table {foreign[0]!r})")

    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if current is not None and current not in known:
        raise StorageFailed(
            f"the database has schema {current}, this program knows up to {HEAD}: "
            "use the newer release that wrote it, or another data directory"
        )
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    return True
