"""The part of the SQLite catalog that edits: namespaces as a whole, updates, deletes, expiry.

What each method promises is said in `api_edits` (and, for the older ones, in `api`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from clag_server.catalog import cluster_log, delete, namespaces, purge, reads, updates
from clag_server.catalog.api import EmbedderPin, Namespace
from clag_server.catalog.api_clusters import EditAnswer
from clag_server.catalog.api_edits import DeletedBatch, Updated
from clag_server.catalog.sqlite_base import SqliteBase
from clag_server.catalog.transaction import WriteTx
from clag_server.types.errors import NotFound
from clag_server.types.filters import Filter
from clag_server.types.memory import NewMemory
from clag_server.types.namespace import NamespaceSettings


class SqliteEdits(SqliteBase):
    """Implements `CatalogEdits`, and the doors to namespaces and to the deleting of one memory."""

    # --- namespaces
    async def ensure_namespace(self, name: str, embedder: EmbedderPin, *, create: bool) -> Namespace:
        """Return the namespace as it is pinned (its embedder may be another), made when missing and `create`."""
        try:
            found = await self.get_namespace(name)
        except NotFound:
            if not create:
                raise
        else:
            if not (create and found.deleting):
                return found
        return await self._write(lambda tx: namespaces.ensure_namespace(tx, name, embedder))

    async def get_namespace(self, name: str) -> Namespace:
        """Return a namespace by name."""
        return await self._read(lambda connection: reads.get_namespace(connection, name))

    async def list_namespaces(self) -> Sequence[Namespace]:
        """Return all namespaces by name."""
        return await self._read(reads.list_namespaces)

    async def create_namespace(
        self, name: str, embedder: EmbedderPin, settings: NamespaceSettings, *, now_ns: int
    ) -> Namespace:
        """Create a namespace."""
        return await self._write(
            lambda tx: namespaces.create_namespace(tx, name, embedder, settings, now_ns=now_ns)
        )

    async def update_namespace(self, ns: int, settings: NamespaceSettings, *, etag: str, now_ns: int) -> Namespace:
        """Replace the settings."""
        return await self._write(lambda tx: namespaces.update_namespace(tx, ns, settings, etag=etag, now_ns=now_ns))

    async def mark_deleting(self, ns: int, *, now_ns: int) -> Namespace:
        """Say that the namespace goes."""
        return await self._write(lambda tx: namespaces.mark_deleting(tx, ns, now_ns=now_ns))

    async def purge_namespace(self, ns: int, *, limit: int) -> int:
        """Remove some rows of a marked namespace."""
        gone = await self._write(lambda tx: purge.purge_rows(tx, ns, limit=limit))
        if gone:
            return gone
        # The change log is searched by a reader, past other namespaces' rows, so that no write waits for it.
        revisions = await self._read(lambda c: purge.changes_of(c, ns, limit=limit))
        if revisions:
            return await self._write(lambda tx: purge.purge_changes(tx, ns, revisions))
        return await self._write(lambda tx: purge.purge_last(tx, ns, limit=limit))

    # --- memories
    async def update(
        self,
        ns: int,
        memory_id: str,
        after: NewMemory,
        *,
        fields: frozenset[str],
        lexical: str | None,
        etag: str,
        now_ns: int,
        answer: Callable[[Updated], EditAnswer] | None = None,
    ) -> Updated:
        """Update a memory, and keep the answer."""

        def write(tx: WriteTx) -> Updated:
            updated = updates.update(
                tx, ns, memory_id, after, fields=fields, lexical=lexical, etag=etag, now_ns=now_ns
            )
            if answer is not None:
                cluster_log.save_answer(tx, ns, answer(updated), now_ns=now_ns)
            return updated

        return await self._write(write)

    async def count_matching(self, ns: int, where: Filter) -> tuple[int, int]:
        """Count memories that match."""
        return await self._read(lambda c: reads.count_matching(c, ns, where))

    async def delete(self, ns: int, memory_id: str, *, etag: str, now_ns: int) -> int:
        """Delete a memory everywhere."""
        return await self._write(lambda tx: delete.delete(tx, ns, memory_id, etag=etag, now_ns=now_ns))

    async def delete_matching(
        self, ns: int, where: Filter, *, through_key: int, limit: int, now_ns: int, after_key: int = 0
    ) -> DeletedBatch:
        """Delete some of the memories that match; a reader finds them, so that no write waits for the search."""
        find = partial(reads.first_matching, ns=ns, where=where, through=through_key, limit=limit)
        remove = partial(delete.delete_still_matching, ns=ns, where=where, now_ns=now_ns)
        while True:
            keys = await self._read(partial(find, after=after_key))
            batch = await self._write(partial(remove, keys=keys))
            if batch.keys or not keys:
                return batch
            after_key = keys[-1]  # all of them changed in between

    async def delete_expired(self, ns: int, *, now_ns: int, limit: int) -> DeletedBatch:
        """Delete some of the memories whose time has come."""
        return await self._write(lambda tx: delete.delete_expired(tx, ns, now_ns=now_ns, limit=limit))

    async def next_expiry(self) -> Mapping[int, int]:
        """Return the earliest expire time of each namespace."""
        return await self._read(reads.next_expiry)
