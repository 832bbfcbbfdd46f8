"""Schema migrations of the catalog (Alembic). `SqliteCatalog.open` upgrades; nobody runs them by hand."""
