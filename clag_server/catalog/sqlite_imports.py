"""The part of the SQLite catalog that takes rows which were exported elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clag_server.catalog import import_book, import_clusters, import_places, imports
from clag_server.catalog.sqlite_base import SqliteBase
from clag_server.types.ingest import StreamPosition, StreamRef
from clag_server.types.transfer import EmbeddedMemory, ImportOptions, ImportResult, ImportRow, ReservedPlace


class SqliteImports(SqliteBase):
    """`catalog.api_imports.CatalogImports`; what each method promises is said there."""

    async def import_rows(
        self,
        ns: int,
        rows: Sequence[ImportRow],
        *,
        first_seq: int,
        stream: StreamRef,
        options: ImportOptions,
        now_ns: int,
    ) -> ImportResult:
        """Store a batch."""
        return await self._write(
            lambda tx: imports.import_rows(
                tx, ns, rows, first_seq=first_seq, stream=stream, options=options, now_ns=now_ns
            )
        )

    async def finish_import(
        self, ns: int, ref: StreamRef, *, last_seq: int, now_ns: int
    ) -> tuple[StreamPosition, ImportResult]:
        """Check a stream's end, and tidy up."""
        return await self._write(
            lambda tx: import_clusters.finish_import(tx, ns, ref, last_seq=last_seq, now_ns=now_ns)
        )

    async def reserved_places(self, ns: int, keys: Sequence[int]) -> Mapping[int, ReservedPlace]:
        """Return reserved places."""
        return await self._read(lambda connection: import_book.reserved_places(connection, ns, keys))

    async def place_reserved(self, ns: int, embedded: Sequence[EmbeddedMemory], *, now_ns: int) -> ImportResult:
        """Place what is embedded now."""
        return await self._write(lambda tx: import_places.place_reserved(tx, ns, embedded, now_ns=now_ns))
