"""Alembic's entry: migrates over the connection that `catalog.migrate` hands in, inside its transaction."""

from __future__ import annotations

from alembic import context

from clag_server.catalog.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=False,  # the caller's BEGIN and COMMIT enclose all revisions
)
context.run_migrations()
