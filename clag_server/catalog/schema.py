"""Tables of the catalog, as SQLAlchemy Core sees them.

The migrations in `migrations/versions` create these tables; a test compares the two. Lists, attributes and routing
decisions are JSON text (written and read by `rows`), vectors are float32 little-endian blobs. One full-text table
per namespace (`lexical`) lives beside them, because FTS5 is no concept of Core. What is remembered is in
`schema_memories`, what happened and what was asked for in `schema_log`.
"""

from __future__ import annotations

from clag_server.catalog.schema_base import Int64, metadata
from clag_server.catalog.schema_log import (
    ChangeKind,
    changes,
    cluster_history,
    counters,
    create_requests,
    edit_requests,
    import_numbers,
    index_ops,
    ingest_streams,
    memory_history,
    operations,
)
from clag_server.catalog.schema_memories import (
    UNDECIDED_SQL,
    UNFINISHED_SQL,
    clusters,
    episodes,
    failures,
    link_targets,
    memories,
    namespaces,
    sessions,
)

__all__ = [
    "UNDECIDED_SQL",
    "UNFINISHED_SQL",
    "ChangeKind",
    "Int64",
    "changes",
    "cluster_history",
    "clusters",
    "counters",
    "create_requests",
    "edit_requests",
    "episodes",
    "failures",
    "import_numbers",
    "index_ops",
    "ingest_streams",
    "link_targets",
    "memories",
    "memory_history",
    "metadata",
    "namespaces",
    "operations",
    "sessions",
]
